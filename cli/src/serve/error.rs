//! What can go wrong: with a server, and with a request, in the words and numbers of OpenAI's interface.

use runtime::ChatError;
use runtime::chat::{GrammarError, SamplingError};
use runtime::model::ModelError;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ServeError {
    /// The address cannot be had.
    #[error("--listen {listen}: {what}")]
    Listen {
        /// As given.
        listen: String,
        /// What the system said, and what to do.
        what: String,
    },
    /// Others could come in without a key.
    #[error(
        "--listen {0} lets other machines in, and no key is asked of them: set QWEN35_API_KEY or give --api-key-file; \
         --anyone if that is meant"
    )]
    Open(String),
    /// The key cannot be used.
    #[error("{from}: {what}")]
    Key {
        /// The file or the variable.
        from: String,
        /// Why not.
        what: String,
    },
    /// The system gives no threads, or no signals.
    #[error("the server cannot start: {0}")]
    System(std::io::Error),
    /// What answers is gone, which nothing here may cause.
    #[error("the thread that answers has ended: start the server again")]
    Worker,
    /// A socket's file.
    #[error("--listen unix:{}: {what}", path.display())]
    Socket {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ApiError {
    /// Something in the request is wrong.
    #[error("{what}")]
    Invalid {
        /// Which field.
        param: Option<String>,
        /// What is wrong with it.
        what: String,
    },
    /// The conversation is too long.
    #[error("{0}")]
    Context(String),
    /// No key, or a wrong one.
    #[error(
        "this server wants a key: send the header `Authorization: Bearer KEY` with the one that it was started with"
    )]
    Key,
    /// A request that a page of somebody else's may have caused.
    #[error("{0}")]
    Forbidden(String),
    /// A path that there is not.
    #[error("there is nothing at {0}; /openapi.json lists what there is")]
    NoPath(String),
    /// Another model.
    #[error("there is no model `{name}` here; this server has `{have}` (the field may be left out)")]
    NoModel {
        /// What was asked for.
        name: String,
        /// What there is.
        have: String,
    },
    /// A method that the path does not have.
    #[error("{path} wants {allowed}")]
    Method {
        /// The path.
        path: String,
        /// What it has.
        allowed: &'static str,
    },
    /// The body did not come in time.
    #[error("the body of the request did not come within {0} s")]
    Slow(u64),
    /// The body is too large.
    #[error("the body is larger than {0} bytes, which is what this server takes (--max-body)")]
    TooLarge(usize),
    /// The body is of another type.
    #[error("the body has the type {0}, wanted application/json: send the header `Content-Type: application/json`")]
    NotJson(String),
    /// No place in the queue.
    #[error("{waiting} requests are waiting already: try again in {retry} s")]
    Full {
        /// How many wait.
        waiting: usize,
        /// Seconds.
        retry: u64,
    },
    /// Too much is being held for other requests.
    #[error("the bodies and pictures of other requests take all the memory that is set apart for them: try again")]
    Memory,
    /// The time is over.
    #[error("the request was not answered within {0} s (--deadline)")]
    Deadline(u64),
    /// The server is being stopped.
    #[error("the server is being stopped")]
    Stopping,
    /// The device is not there.
    #[error("the NPU cannot be used at the moment: {reason}; it is being loaded again, try again in {retry} s")]
    Unhealthy {
        /// Why.
        reason: String,
        /// Seconds.
        retry: u64,
    },
    /// The device failed under this answer.
    #[error("the NPU failed under this answer: {0}")]
    Device(String),
    /// Something that must not happen.
    #[error("{0}")]
    Internal(String),
}

impl ApiError {
    /// Something is wrong with a field.
    pub(super) fn field(param: impl Into<String>, what: impl std::fmt::Display) -> ApiError {
        let param = param.into();
        ApiError::Invalid { what: format!("`{param}`: {what}"), param: Some(param) }
    }

    /// The status of the answer.
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Invalid { .. } | Self::Context(_) => 400,
            Self::Key => 401,
            Self::Forbidden(_) => 403,
            Self::NoPath(_) | Self::NoModel { .. } => 404,
            Self::Method { .. } => 405,
            Self::Slow(_) => 408,
            Self::TooLarge(_) => 413,
            Self::NotJson(_) => 415,
            Self::Internal(_) => 500,
            Self::Full { .. }
            | Self::Memory
            | Self::Deadline(_)
            | Self::Stopping
            | Self::Unhealthy { .. }
            | Self::Device(_) => 503,
        }
    }

    /// When it is worth trying again, in seconds.
    pub(super) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::Full { retry, .. } | Self::Unhealthy { retry, .. } => Some(*retry),
            Self::Memory | Self::Device(_) => Some(2),
            Self::Stopping | Self::Deadline(_) => Some(10),
            _ => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self.status() {
            401 => "authentication_error",
            403 => "permission_error",
            500 | 503 => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// A word for it, for programs.
    pub(super) fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::Invalid { .. } => return None,
            Self::Context(_) => "context_length_exceeded",
            Self::Key => "invalid_api_key",
            Self::Forbidden(_) => "forbidden",
            Self::NoPath(_) => "not_found",
            Self::NoModel { .. } => "model_not_found",
            Self::Method { .. } => "method_not_allowed",
            Self::Slow(_) => "request_timeout",
            Self::TooLarge(_) => "request_too_large",
            Self::NotJson(_) => "unsupported_media_type",
            Self::Full { .. } => "queue_full",
            Self::Memory => "out_of_memory",
            Self::Deadline(_) => "deadline_exceeded",
            Self::Stopping => "stopping",
            Self::Unhealthy { .. } => "unhealthy",
            Self::Device(_) => "device_error",
            Self::Internal(_) => "internal_error",
        })
    }

    /// OpenAI's shape of an error.
    pub(super) fn to_json(&self) -> Value {
        let param = match self {
            Self::Invalid { param, .. } => param.clone(),
            Self::Context(_) => Some("messages".into()),
            Self::NoModel { .. } => Some("model".into()),
            _ => None,
        };
        json!({"error": {"message": self.to_string(), "type": self.kind(), "param": param, "code": self.code()}})
    }
}

/// What a failed answer is to the client. What the client has caused is its own to mend.
impl From<&ChatError> for ApiError {
    fn from(error: &ChatError) -> ApiError {
        let what = error.to_string();
        let of = |param: &str| ApiError::Invalid { param: Some(param.to_owned()), what: what.clone() };
        match error {
            error if error.is_device() => ApiError::Device(what),
            ChatError::PromptTooLong { .. } | ChatError::Model(ModelError::ContextFull { .. }) => {
                ApiError::Context(what)
            }
            ChatError::NoVision { .. } | ChatError::Template(_) => of("messages"),
            ChatError::NothingToSay => of("max_tokens"),
            ChatError::Stops(_) => of("stop"),
            ChatError::Sampling(SamplingError::Setting { what: setting, .. }) => of(setting),
            ChatError::Grammar(GrammarError::Schema { .. }) => of("response_format"),
            ChatError::Grammar(GrammarError::Definition { .. }) => of("tools"),
            ChatError::Grammar(GrammarError::Function { .. }) => of("tool_choice"),
            ChatError::Model(ModelError::TooManyPatches { .. } | ModelError::ImageTokens { .. }) => of("messages"),
            _ => ApiError::Internal(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::npu::NpuError;

    #[test]
    fn errors_have_openais_shape() {
        let error = ApiError::field("top_p", "it is 3").to_json();
        let wanted = json!({"error": {"message": "`top_p`: it is 3", "type": "invalid_request_error", "param": "top_p",
            "code": null}});
        assert_eq!(error, wanted);
        assert_eq!(ApiError::Key.to_json()["error"]["code"], "invalid_api_key");
        assert_eq!(ApiError::Full { waiting: 3, retry: 7 }.retry_after(), Some(7));
    }

    #[test]
    fn whose_fault_it_was_shows_in_the_status() {
        for (error, status) in [
            (ChatError::PromptTooLong { prompt: 9, max_ctx: 8 }, 400),
            (ChatError::NoVision { images: 1 }, 400),
            (ChatError::NothingToSay, 400),
            (ChatError::Tokenizer("x".into()), 500),
            (ChatError::Npu(NpuError::Lost), 503),
            (ChatError::Model(ModelError::NoNumbers), 500),
        ] {
            assert_eq!(ApiError::from(&error).status(), status, "{error}");
        }
    }
}
