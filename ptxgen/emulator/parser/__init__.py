"""Parses PTX text into a ParsedModule (PTX ISA 9.1 §4, §5, §11).

Names are resolved here (block-scoped registers, variables and labels); opcodes and modifiers are
checked later, by the decoder of each instruction.
"""
