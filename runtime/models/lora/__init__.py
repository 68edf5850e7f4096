"""LoRA adapters: PEFT's files, and the adapters of a decoder on its device."""
