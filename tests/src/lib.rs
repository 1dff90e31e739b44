//! What end-to-end tests share, and the table of driver cases that runs against any device node.
#![deny(unsafe_code)]

pub mod cases;
pub mod checkpoint;
pub mod contracts;
pub mod forward;
pub mod references;
pub mod sequence;
pub mod tiny;
