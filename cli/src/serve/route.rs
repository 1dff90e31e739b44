//! Paths, and what they take.

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Page,
    Health,
    Metrics,
    OpenApi,
    Models,
    Model,
    Chat,
    Text,
    Responses,
}

impl Route {
    pub(super) fn of(path: &str) -> Option<Route> {
        Some(match path {
            "/" => Self::Page,
            "/health" => Self::Health,
            "/metrics" => Self::Metrics,
            "/openapi.json" => Self::OpenApi,
            "/v1/models" => Self::Models,
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Text,
            "/v1/responses" => Self::Responses,
            _ if path.strip_prefix("/v1/models/").is_some_and(|name| !name.is_empty()) => Self::Model,
            _ => return None,
        })
    }

    /// As it is counted.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Page => "/",
            Self::Health => "/health",
            Self::Metrics => "/metrics",
            Self::OpenApi => "/openapi.json",
            Self::Models => "/v1/models",
            Self::Model => "/v1/models/{model}",
            Self::Chat => "/v1/chat/completions",
            Self::Text => "/v1/completions",
            Self::Responses => "/v1/responses",
        }
    }

    pub(super) fn takes(self) -> &'static str {
        match self {
            Self::Chat | Self::Text | Self::Responses => "POST",
            _ => "GET, HEAD",
        }
    }

    /// Whether anybody may see it.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Page | Self::Health | Self::OpenApi)
    }
}

/// A path with its `%XX` read. What is none stays as it is.
pub(super) fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let code = bytes.get(at + 1..at + 3).filter(|_| byte == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(code) => {
                out.push(code);
                at += 3;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn paths_lead_somewhere() {
        assert_eq!(Route::of("/v1/models/a%20b"), Some(Route::Model));
        assert_eq!(Route::of("/v1/models/"), None);
        assert_eq!(Route::of("/v1/chat/completions/"), None);
        assert_eq!(percent_decoded("a%20b%2"), "a b%2");
        assert_eq!(percent_decoded("%e4%zz%"), "\u{fffd}%zz%");
    }

    /// The document describes what there is, and nothing else.
    #[test]
    fn the_openapi_document_has_every_route() {
        let document: Value = serde_json::from_str(super::super::http::OPENAPI).unwrap();
        let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
        for route in [
            Route::Health,
            Route::Metrics,
            Route::OpenApi,
            Route::Models,
            Route::Model,
            Route::Chat,
            Route::Text,
            Route::Responses,
        ] {
            let methods = document["paths"][route.name()].as_object().unwrap_or_else(|| panic!("{}", route.name()));
            for method in methods.keys().filter(|key| *key != "parameters") {
                assert!(route.takes().to_ascii_lowercase().contains(method.as_str()), "{method} {}", route.name());
            }
        }
        for path in paths {
            assert!(Route::of(&path.replace("{model}", "m")).is_some(), "{path}");
        }
    }
}
