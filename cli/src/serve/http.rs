//! Requests and where they go.

use super::chat_request::{self, Asked};
use super::error::ApiError;
use super::fields::Fields;
use super::flow::{Flow, Out, Teller};
use super::gate::Gate;
use super::job::Job;
use super::log::Log;
use super::metrics::{Metrics, Now};
use super::options::ServeOptions;
use super::pictures::MAX_PIXELS;
use super::queue::{NoPlace, Queue};
use super::reply::{Form, Reply};
use super::responses_reply::Response;
use super::responses_request;
use super::route::{Route, percent_decoded};
use super::state::{Phase, State};
use super::text_request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, StatusCode};
use runtime::chat::Cancel;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(60);
/// KiB of bodies and pictures that may be held at a time.
const HELD_KIB: usize = 1 << 20;
/// A body beyond this is read aside: others are served meanwhile.
const LARGE: usize = 64 << 10;

const PAGE: &str = include_str!("page/index.html");
pub(super) const OPENAPI: &str = include_str!("openapi.json");
const JSON: &str = "application/json";
/// The page is whole: it loads nothing, and asks nobody but this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: \
    blob:; media-src 'self' blob: mediastream:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// What all requests share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) options: Arc<ServeOptions>,
    pub(super) gate: Gate,
    pub(super) queue: Arc<Queue<Job>>,
    pub(super) state: Arc<State>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Arc<Log>,
    /// Ends the server.
    pub(super) stop: watch::Sender<bool>,
    /// Memory that bodies and pictures may take.
    memory: Arc<Semaphore>,
    number: AtomicU64,
}

impl App {
    pub(super) fn new(
        options: Arc<ServeOptions>,
        gate: Gate,
        queue: Arc<Queue<Job>>,
        state: Arc<State>,
        metrics: Arc<Metrics>,
        log: Arc<Log>,
    ) -> App {
        let memory = Arc::new(Semaphore::new(HELD_KIB.max(options.max_body / 512)));
        App {
            options,
            gate,
            queue,
            state,
            metrics,
            log,
            stop: watch::Sender::new(false),
            memory,
            number: AtomicU64::new(1),
        }
    }

    /// Answers a request of `client`.
    pub(super) async fn serve(
        self: Arc<Self>,
        client: Arc<str>,
        request: Request<Incoming>,
    ) -> Result<hyper::Response<Out>, Infallible> {
        let start = Instant::now();
        let route = Route::of(request.uri().path());
        let (method, headers) = (request.method().clone(), request.headers().clone());
        let preflight = method == Method::OPTIONS;
        let answered = self.route(&client, route, request).await;
        let mut response = answered.unwrap_or_else(|error| refused(&error));
        self.gate.tell(&headers, preflight, response.headers_mut());
        let status = response.status().as_u16();
        let name = route.map_or("other", Route::name);
        self.metrics.request(name, status);
        // Looked at all the time.
        let quiet =
            matches!(route, Some(Route::Health | Route::Metrics)) || route.is_some_and(Route::is_open) && status < 400;
        if !quiet {
            self.log.info(
                "request",
                &[
                    ("method", method.as_str().into()),
                    ("route", name.into()),
                    ("status", status.into()),
                    ("client", client.as_ref().into()),
                    ("ms", (start.elapsed().as_millis() as u64).into()),
                ],
            );
        }
        Ok(response)
    }

    async fn route(
        self: &Arc<Self>,
        client: &str,
        route: Option<Route>,
        request: Request<Incoming>,
    ) -> Result<hyper::Response<Out>, ApiError> {
        let path = request.uri().path().to_owned();
        self.gate.origin(request.headers())?;
        if request.method() == Method::OPTIONS {
            let allow = route.map_or("GET, HEAD, POST", Route::takes);
            let mut response = respond(204, JSON, Bytes::new());
            response.headers_mut().remove(CONTENT_TYPE);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
            return Ok(response);
        }
        if !route.is_some_and(Route::is_open) {
            self.gate.key(request.headers())?;
        }
        let route = route.ok_or_else(|| ApiError::NoPath(path.clone()))?;
        if !route.takes().split(", ").any(|method| request.method() == method) {
            return Err(ApiError::Method { path, allowed: route.takes() });
        }
        match route {
            Route::Page => Ok(page()),
            Route::OpenApi => Ok(respond(200, JSON, OPENAPI)),
            Route::Health => {
                self.state.be_doubtful();
                let (status, body) = self.state.health(self.queue.waiting(), self.queue.limit());
                let mut response = value(status, &body);
                response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                Ok(response)
            }
            Route::Metrics => {
                self.state.be_curious();
                let now = Now {
                    up: self.state.phase() == Phase::Ready,
                    waiting: self.queue.waiting(),
                    queue_limit: self.queue.limit(),
                    running: self.state.running(),
                    uptime: self.state.uptime(),
                };
                Ok(respond(200, "text/plain; version=0.0.4; charset=utf-8", self.metrics.text(&now)))
            }
            Route::Models => Ok(value(200, &json!({"object": "list", "data": [self.model()]}))),
            Route::Model => {
                let name = percent_decoded(&path["/v1/models/".len()..]);
                self.named(Some(&name))?;
                Ok(value(200, &self.model()))
            }
            Route::Chat | Route::Text | Route::Responses => self.generate(client, route, request).await,
        }
    }

    fn model(&self) -> Value {
        let facts = self.state.facts();
        json!({
            "id": self.state.name(),
            "object": "model",
            "created": self.state.created(),
            "owned_by": "qwen35-direct",
            "max_model_len": facts.map(|facts| facts.max_ctx),
        })
    }

    /// Refuses another model's name.
    fn named(&self, name: Option<&str>) -> Result<(), ApiError> {
        let have = self.state.name();
        match name {
            Some(name) if name != have => Err(ApiError::NoModel { name: name.to_owned(), have: have.to_owned() }),
            _ => Ok(()),
        }
    }

    async fn generate(
        self: &Arc<Self>,
        client: &str,
        route: Route,
        request: Request<Incoming>,
    ) -> Result<hyper::Response<Out>, ApiError> {
        self.state.admit()?;
        is_json(request.headers())?;
        let limit = self.options.max_body;
        let announced = request.body().size_hint();
        let known = announced.exact().map_or(limit, |bytes| usize::try_from(bytes).unwrap_or(limit).min(limit));
        let room = self.hold(known)?;
        let bytes = body(request.into_body(), limit).await?;
        let since = Instant::now();
        let app = Arc::clone(self);
        let length = bytes.len();
        let read = move || app.read(route, &bytes);
        let ((asked, form), pictures) = if length > LARGE {
            // Pictures of the largest size may come out of it; what of this is not needed is given back.
            let mut most = self.hold(MAX_PIXELS * 3)?;
            let read = spawn_blocking(read).await.map_err(|error| ApiError::Internal(error.to_string()))??;
            let pictures = most.split(kib(read.0.wanted.pixels() * 3) as usize);
            (read, pictures)
        } else {
            (read()?, None)
        };
        let Asked { wanted, stream, usage, logprobs, user } = asked;
        let deadline = since + self.options.deadline;
        let (to, pieces) = unbounded_channel();
        let cancel = Cancel::new();
        let job = Job { wanted, since, deadline, cancel: cancel.clone(), to };
        let who = user.as_deref().unwrap_or(client);
        let place = self.queue.enter(who, job).map_err(|none| match none {
            NoPlace::Full(waiting) => ApiError::Full { waiting, retry: 1 + waiting as u64 / 4 },
            NoPlace::Closed => ApiError::Stopping,
        })?;
        let mut flow = Flow::new(pieces, place, cancel, Arc::clone(&self.metrics), (room, pictures));
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let reply = |form: Form, echo: String| {
            Teller::Reply(Box::new(Reply::new(form, self.state.name(), number, usage, logprobs, echo)))
        };
        let teller = match form {
            Told::Chat => reply(Form::Chat, String::new()),
            Told::Text(echo) => reply(Form::Text, echo),
            Told::Response(body) => Teller::Response(Box::new(Response::new(self.state.name(), number, &body))),
        };
        let first = flow.begin(since, deadline).await?;
        if stream {
            let mut response = hyper::Response::new(Out::stream(flow, teller, first));
            set(response.headers_mut(), CONTENT_TYPE, "text/event-stream; charset=utf-8");
            set(response.headers_mut(), CACHE_CONTROL, "no-cache");
            set(response.headers_mut(), HeaderName::from_static("x-accel-buffering"), "no");
            return Ok(response);
        }
        let pieces = flow.rest(first).await;
        Ok(value(200, &teller.whole(pieces)?))
    }

    /// Sets memory apart.
    fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.memory).try_acquire_many_owned(kib(bytes)).map_err(|_| ApiError::Memory)
    }

    /// What a body asks for.
    fn read(&self, route: Route, bytes: &[u8]) -> Result<(Asked, Told), ApiError> {
        let body: Value = serde_json::from_slice(bytes)
            .map_err(|error| ApiError::Invalid { param: None, what: format!("the body is not JSON: {error}") })?;
        self.named(Fields::of(&body)?.string("model")?)?;
        let wishes = &self.options.wishes;
        match route {
            Route::Text => text_request::read(&body, wishes).map(|(asked, echo)| (asked, Told::Text(echo))),
            Route::Responses => {
                let chat = responses_request::as_chat(&body)?;
                Ok((chat_request::read(&chat, wishes)?, Told::Response(body)))
            }
            _ => Ok((chat_request::read(&body, wishes)?, Told::Chat)),
        }
    }
}

/// How an answer is to be told.
enum Told {
    Chat,
    /// Behind this text.
    Text(String),
    /// With what was asked for.
    Response(Value),
}

fn kib(bytes: usize) -> u32 {
    (bytes / 1024 + 1) as u32
}

/// Refuses a body that does not say that it is JSON. A page of another origin cannot say so without being asked first.
fn is_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence = given.as_deref().map(|text| text.split(';').next().unwrap_or_default().trim());
    match essence {
        Some(essence) if essence.eq_ignore_ascii_case(JSON) => Ok(()),
        Some(other) => Err(ApiError::NotJson(format!("`{other}`"))),
        None => Err(ApiError::NotJson("none".into())),
    }
}

/// A whole body, if it comes in time and is not too large.
async fn body(body: Incoming, limit: usize) -> Result<Bytes, ApiError> {
    if body.size_hint().lower() > limit as u64 {
        // A client that is still sending would not see the answer.
        let _ = timeout(Duration::from_secs(2), Limited::new(body, limit.saturating_mul(2)).collect()).await;
        return Err(ApiError::TooLarge(limit));
    }
    match timeout(BODY_TIME, Limited::new(body, limit).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::TooLarge(limit)),
        Ok(Err(error)) => Err(ApiError::Invalid { param: None, what: format!("the body did not come whole: {error}") }),
        Err(_) => Err(ApiError::Slow(BODY_TIME.as_secs())),
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &'static str) {
    headers.insert(name, HeaderValue::from_static(value));
}

fn respond(status: u16, kind: &'static str, body: impl Into<Bytes>) -> hyper::Response<Out> {
    let mut response = hyper::Response::new(Out::text(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    set(response.headers_mut(), CONTENT_TYPE, kind);
    set(response.headers_mut(), X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

fn value(status: u16, body: &Value) -> hyper::Response<Out> {
    respond(status, JSON, body.to_string())
}

fn refused(error: &ApiError) -> hyper::Response<Out> {
    let mut response = value(error.status(), &error.to_json());
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    match error {
        ApiError::Method { allowed, .. } => set(response.headers_mut(), ALLOW, allowed),
        ApiError::Key => set(response.headers_mut(), hyper::header::WWW_AUTHENTICATE, "Bearer"),
        // The rest of the body is not waited for.
        ApiError::TooLarge(_) | ApiError::Slow(_) => set(response.headers_mut(), hyper::header::CONNECTION, "close"),
        _ => {}
    }
    response
}

fn page() -> hyper::Response<Out> {
    let mut response = respond(200, "text/html; charset=utf-8", PAGE);
    let headers = response.headers_mut();
    set(headers, CONTENT_SECURITY_POLICY, POLICY);
    set(headers, REFERRER_POLICY, "no-referrer");
    set(headers, HeaderName::from_static("permissions-policy"), "camera=(self)");
    headers.insert(CONTENT_LENGTH, PAGE.len().into());
    response
}
