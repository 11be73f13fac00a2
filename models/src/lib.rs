//! Target models: one configurable decoder, its weights and its slot KV cache.
