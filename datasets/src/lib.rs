//! Raw sources brought to one JSONL shape, pinned by content hash, and the synthetic training text.
