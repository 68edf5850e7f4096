"""Tool calls in the formats of models: detect the format, parse calls from text, write the text that opens one."""
