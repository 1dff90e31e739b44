//! Bundles: what the exporter makes of checkpoints, and what the reader refuses.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod bad;
mod common;
mod export;
mod verify;
