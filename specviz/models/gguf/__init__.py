"""GGUF files of the Llama family on torch: header, dequantised weights and tokenizer."""
