//! Who is let in.

use crate::client::{Server, demo, send, user};
use crate::common::{folder, run};
use serde_json::json;
use std::io::BufReader;
use std::os::unix::net::{UnixListener, UnixStream};

#[test]
fn a_key_is_wanted_where_there_is_one() {
    let file = folder().join("key");
    std::fs::write(&file, "open-sesame\n").unwrap();
    let server = Server::start(&["--max-ctx", "256", "--api-key-file", file.to_str().unwrap()]);
    let body = json!({"messages": [user("hi")], "max_tokens": 2}).to_string();
    let ask = |path: &str, key: Option<&str>| {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(key.map(|key| ("authorization", key)));
        let (method, body) = if path.ends_with("completions") { ("POST", body.as_str()) } else { ("GET", "") };
        server.ask(method, path, &headers, body)
    };
    for path in ["/v1/chat/completions", "/v1/models", "/metrics", "/nowhere"] {
        for key in [None, Some("Bearer nothing"), Some("open-sesame")] {
            let response = ask(path, key);
            assert_eq!((response.status, response.error().1), (401, json!("invalid_api_key")), "{path} {key:?}");
        }
    }
    assert_eq!(ask("/v1/chat/completions", Some("Bearer open-sesame")).status, 200);
    assert_eq!(ask("/v1/models", Some("Bearer open-sesame")).status, 200);
    for path in ["/", "/health", "/openapi.json"] {
        assert_eq!(ask(path, None).status, 200, "{path}");
    }
    assert!(!server.log().contains("sesame"));
}

#[test]
fn other_machines_need_a_key() {
    let bundle = demo();
    let base = ["serve", bundle.to_str().unwrap(), "--device", "model", "--listen", "0.0.0.0:0"];
    let refused = run(&base);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("QWEN35_API_KEY") && refused.stderr.contains("--anyone"), "{refused:?}");
    let empty = folder().join("empty-key");
    std::fs::write(&empty, "\n").unwrap();
    let refused = run(&[&base[..], &["--api-key-file", empty.to_str().unwrap()]].concat());
    assert!(refused.code == Some(1) && refused.stderr.contains("holds no key"), "{refused:?}");
}

/// Another page in the same browser, and a name that points at this machine.
#[test]
fn pages_of_others_are_kept_out_unless_named() {
    let server = Server::start(&["--max-ctx", "256", "--cors", "https://mine.example"]);
    let ask = |origin: &str| server.ask("GET", "/v1/models", &[("origin", origin)], "");
    assert_eq!(ask("https://other.example").status, 403);
    let mine = ask("https://mine.example");
    assert_eq!((mine.status, mine.header("access-control-allow-origin")), (200, Some("https://mine.example")));
    let own = server.ask("GET", "/v1/models", &[("host", "127.0.0.1:9"), ("origin", "http://127.0.0.1:9")], "");
    assert_eq!(own.status, 200);
    assert_eq!(server.ask("GET", "/v1/models", &[("host", "rebound.example")], "").status, 403);
    let preflight = [("origin", "https://mine.example"), ("access-control-request-method", "POST")];
    let preflight = server.ask("OPTIONS", "/v1/chat/completions", &preflight, "");
    assert_eq!(preflight.status, 204);
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("authorization"));
}

#[test]
fn a_socket_in_the_file_system_serves_and_goes() {
    let path = folder().join("socket");
    let at = format!("unix:{}", path.display());
    // What a server that was killed has left behind.
    drop(UnixListener::bind(&path).unwrap());
    let server = Server::listening(&at, &["--max-ctx", "256"]);
    assert_eq!(server.at, at);
    let mut stream = UnixStream::connect(&path).unwrap();
    send(&mut stream, "GET", "/v1/models", &[], "");
    assert_eq!(crate::client::Response::read(&mut BufReader::new(stream)).status, 200);
    // Somebody listens there.
    let bundle = demo();
    let second = run(&["serve", bundle.to_str().unwrap(), "--device", "model", "--listen", &at]);
    assert!(second.code == Some(1) && second.stderr.contains("another program listens"), "{second:?}");
    server.signal("-TERM");
    assert_eq!(server.end(), Some(0));
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    let third = run(&["serve", bundle.to_str().unwrap(), "--device", "model", "--listen", &at]);
    assert!(third.code == Some(1) && third.stderr.contains("something else"), "{third:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
}
