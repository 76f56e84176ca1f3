"""GGUF files of the Llama family on torch: the header, the weights dequantised, the tokenizer."""
