//! Reads, checks, writes and rewrites GGUF files, without C.
