"""The decisions of the methods, each written once: NumPy and plain Python, no torch.

A method (`specviz.methods`) decides by these functions while it decodes. A what-if (`specviz.whatifs`)
decides by them again when it replays a record, where there is no model. A function that is annotated with
`Array` or `Number` takes tensors too: it uses only what arrays and tensors have in common.

A module holds a method's parameters where what-ifs ask about them, so that each default is declared once.
"""
