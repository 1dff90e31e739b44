//! The server from outside: the program as it is, a client that writes its own bytes, and only this machine between them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod answers;
mod bad;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod gate;
mod life;
mod queue;
