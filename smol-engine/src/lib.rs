//! Engines of smolmaxxing that need no llama.cpp: machine probes and I/O.
