//! The f32 math of Qwen3.5 that runs on the host, and the packed number formats.
