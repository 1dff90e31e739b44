//! Qwen3.5 chat on AMD Ryzen AI NPUs through the amdxdna driver alone.

fn main() {}
