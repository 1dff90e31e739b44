//! Who may come in: the key, and pages of other origins.

use super::error::{ApiError, ServeError};
use super::options::{Listen, ServeOptions};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_MAX_AGE,
    AUTHORIZATION, HOST, HeaderMap, HeaderValue, ORIGIN, VARY,
};

/// Holds the key, where no file was named.
const VARIABLE: &str = "QWEN35_API_KEY";

/// Decides who is answered.
#[derive(Debug)]
pub(super) struct Gate {
    key: Option<Key>,
    cors: Vec<String>,
    /// Names that a client on this machine calls the server by; none: any.
    local: bool,
}

/// A key that is not shown.
struct Key(Vec<u8>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Takes as long whatever is wrong with `given`.
    fn is(&self, given: &[u8]) -> bool {
        let differ = self.0.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b));
        differ == 0 && self.0.len() == given.len()
    }
}

impl Gate {
    /// As the options and the environment say.
    pub(super) fn new(options: &ServeOptions) -> Result<Gate, ServeError> {
        let given = match &options.key_file {
            Some(path) => {
                let from = format!("--api-key-file {}", path.display());
                let text = std::fs::read_to_string(path).map_err(|error| ServeError::Key {
                    from: from.clone(),
                    what: format!("cannot read it: {error}"),
                })?;
                Some((from, text))
            }
            None => std::env::var(VARIABLE).ok().map(|text| (VARIABLE.to_owned(), text)),
        };
        let key = given.map(|(from, text)| key(&text).map_err(|what| ServeError::Key { from, what })).transpose()?;
        if key.is_none() && !options.listen.is_local() && !options.anyone {
            return Err(ServeError::Open(options.listen.to_string()));
        }
        let local = key.is_none() && matches!(options.listen, Listen::Tcp(_)) && options.listen.is_local();
        Ok(Gate { key, cors: options.cors.clone(), local })
    }

    /// Whether a key is asked for.
    pub(super) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Refuses who has no key.
    pub(super) fn key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(key) = &self.key else { return Ok(()) };
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let token = given.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        match token {
            Some((_, token)) if key.is(token.trim_ascii()) => Ok(()),
            _ => Err(ApiError::Key),
        }
    }

    /// Refuses a page of another origin, and one that calls this machine by a name of its own: without a key, any page
    /// that a browser on this machine shows could ask otherwise.
    pub(super) fn origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        if self.local
            && let Some(host) = host
            && !is_local_name(host)
        {
            let what = format!("this server is asked as `{host}`, but answers to localhost only; a key lifts that");
            return Err(ApiError::Forbidden(what));
        }
        let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
        let own = |origin: &str| origin.split_once("://").is_some_and(|(_, name)| Some(name) == host);
        match origin.to_str() {
            Ok(origin) if own(origin) || self.allows(origin) => Ok(()),
            _ => Err(ApiError::Forbidden(format!(
                "pages of {} may not ask this server: --cors names those that may",
                String::from_utf8_lossy(origin.as_bytes())
            ))),
        }
    }

    fn allows(&self, origin: &str) -> bool {
        self.cors.iter().any(|allowed| allowed == "*" || allowed == origin)
    }

    /// What a browser has to be told for a page of another origin.
    pub(super) fn tell(&self, request: &HeaderMap, preflight: bool, response: &mut HeaderMap) {
        if self.cors.is_empty() {
            return;
        }
        response.append(VARY, HeaderValue::from_static("origin"));
        let Some(origin) = request.get(ORIGIN) else { return };
        if !origin.to_str().is_ok_and(|origin| self.allows(origin)) {
            return;
        }
        response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if preflight {
            let set = [
                (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"),
                (ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type"),
                (ACCESS_CONTROL_MAX_AGE, "86400"),
            ];
            for (name, value) in set {
                response.insert(name, HeaderValue::from_static(value));
            }
        }
    }
}

/// The key in a file or a variable.
fn key(text: &str) -> Result<Key, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("it holds no key".into());
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "the key has other characters than letters, digits and signs of ASCII: no header could hold it".into()
        );
    }
    Ok(Key(text.into()))
}

/// Whether this is a name of this machine for itself, with or without a port.
fn is_local_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    name.eq_ignore_ascii_case("localhost") || address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (hyper::header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn the_key_opens_and_nothing_else() {
        let gate = Gate { key: Some(key(" se-cret\n").unwrap()), cors: Vec::new(), local: false };
        for good in ["Bearer se-cret", "bearer  se-cret"] {
            assert_eq!(gate.key(&headers(&[("authorization", good)])), Ok(()), "{good}");
        }
        for bad in ["", "Bearer", "Bearer ", "Bearer se-cre", "Bearer se-crett", "Basic se-cret", "se-cret"] {
            assert_eq!(gate.key(&headers(&[("authorization", bad)])), Err(ApiError::Key), "{bad}");
        }
        assert_eq!(gate.key(&headers(&[])), Err(ApiError::Key));
        assert!(!format!("{gate:?}").contains("se-cret"));
        for bad in ["", " \n", "two words", "\u{e9}"] {
            assert!(key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn pages_of_others_are_refused_unless_named() {
        let gate = |cors: &[&str], local| Gate { key: None, cors: cors.iter().map(|c| (*c).into()).collect(), local };
        let page = headers(&[("host", "localhost:8080"), ("origin", "https://evil.example")]);
        assert!(gate(&[], true).origin(&page).is_err());
        assert_eq!(gate(&["https://evil.example"], true).origin(&page), Ok(()));
        assert_eq!(gate(&["*"], true).origin(&page), Ok(()));
        let own = headers(&[("host", "localhost:8080"), ("origin", "http://localhost:8080")]);
        assert_eq!(gate(&[], true).origin(&own), Ok(()));
        // A name that somebody has given this machine's address to.
        let rebound = headers(&[("host", "evil.example:8080"), ("origin", "http://evil.example:8080")]);
        assert!(gate(&[], true).origin(&rebound).is_err());
        assert_eq!(gate(&[], false).origin(&rebound), Ok(()));
        for (host, local) in [
            ("localhost", true),
            ("LOCALHOST:1", true),
            ("127.0.0.1:80", true),
            ("[::1]:80", true),
            ("127.0.0.1.example:80", false),
            ("localhost.example", false),
            ("10.0.0.1:80", false),
        ] {
            assert_eq!(is_local_name(host), local, "{host}");
        }
    }

    #[test]
    fn browsers_are_told_what_they_may() {
        let gate = Gate { key: None, cors: vec!["https://a.example".into()], local: false };
        let mut response = HeaderMap::new();
        gate.tell(&headers(&[("origin", "https://a.example")]), true, &mut response);
        assert_eq!(response.get(ACCESS_CONTROL_ALLOW_ORIGIN).unwrap(), "https://a.example");
        assert!(response.contains_key(ACCESS_CONTROL_ALLOW_HEADERS));
        let mut other = HeaderMap::new();
        gate.tell(&headers(&[("origin", "https://b.example")]), true, &mut other);
        assert!(!other.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) && other.contains_key(VARY));
    }
}
