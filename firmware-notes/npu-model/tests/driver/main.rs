//! What only the software NPU can be asked: nonsense of any sort, and memory in two copies. Everything else that a door
//! promises is in the table of driver cases, which runs against any node.

#![allow(unreachable_pub, missing_debug_implementations, clippy::unwrap_used, reason = "the modules of one test")]

mod harness;
mod incoherent;
mod nonsense;
