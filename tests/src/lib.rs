//! What end-to-end tests share: a tiny model to run them on, and the bundle made of it.

pub mod tiny;
