//! `serve`: the model behind OpenAI's interface, for many clients and for months.
//!
//! ```text
//! connection (listen) -> key, origin (gate) -> route (http) -> body -> request (chat_request, text_request, responses_request)
//!    -> place in the queue (queue) -> the worker's thread (worker): conversation (store) -> answer (answer)
//!    -> pieces (job) -> JSON or events (reply, responses_reply, flow) -> connection
//! ```
//!
//! One thread turns over all connections and never waits for the device; one thread owns the model and never waits for
//! a client. Between them are the queue, one way, and a channel for each answer, the other.

mod answer;
mod chat_request;
mod error;
mod fields;
mod flow;
mod gate;
mod http;
mod job;
#[cfg(test)]
mod life_tests;
mod listen;
mod log;
mod metrics;
mod notify;
mod options;
mod pictures;
mod queue;
mod reply;
mod responses_reply;
mod responses_request;
mod route;
mod run;
mod sampling;
mod state;
mod store;
mod telemetry;
mod text_request;
mod worker;

pub(crate) use error::ServeError;
pub(crate) use options::{Given, ServeOptions};
pub(crate) use run::run;
