//! Writes test models: tiny random ones for every architecture, and larger function-preserving ones.
