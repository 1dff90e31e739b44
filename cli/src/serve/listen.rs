//! Connections: where they come in, how long they may be slow, and how they end.

use super::error::ServeError;
use super::http::App;
use super::options::Listen;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::Future;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at a time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 512;
/// How long a client may leave a connection without a request, or be at its headers.
const HEADER_TIME: Duration = Duration::from_secs(60);
/// How long a client may read nothing of an answer.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// After an error of the system's (no files left), before the next connection is accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// A socket that connections come in at.
#[derive(Debug)]
pub(super) enum Door {
    Tcp(TcpListener),
    /// With its file, which goes with it.
    Unix(UnixListener, PathBuf),
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Door::Unix(_, path) = self {
            // One that somebody has removed is gone as well.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a connection is made of.
trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

impl Door {
    /// Opens the socket.
    pub(super) async fn open(listen: &Listen) -> Result<Door, ServeError> {
        match listen {
            Listen::Tcp(address) => match TcpListener::bind(address).await {
                Ok(listener) => Ok(Door::Tcp(listener)),
                Err(error) => {
                    let remedy = match error.kind() {
                        io::ErrorKind::AddrInUse => ": another program has it, choose another port",
                        io::ErrorKind::PermissionDenied => ": ports below 1024 need a privilege, choose another port",
                        io::ErrorKind::AddrNotAvailable => ": this machine does not have the address",
                        _ => "",
                    };
                    Err(ServeError::Listen { listen: address.to_string(), what: format!("{error}{remedy}") })
                }
            },
            Listen::Unix(path) => {
                clear(path).await?;
                let listener = UnixListener::bind(path)
                    .map_err(|error| ServeError::Socket { path: path.clone(), what: error.to_string() })?;
                Ok(Door::Unix(listener, path.clone()))
            }
        }
    }

    /// Where it is, the port chosen.
    pub(super) fn place(&self) -> String {
        match self {
            Door::Tcp(listener) => match listener.local_addr() {
                Ok(address) => Listen::Tcp(address).to_string(),
                Err(error) => error.to_string(),
            },
            Door::Unix(_, path) => Listen::Unix(path.clone()).to_string(),
        }
    }

    /// The next connection, and what its client is called.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Arc<str>)> {
        match self {
            Door::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Words go out as they come.
                stream.set_nodelay(true)?;
                Ok((Box::new(stream), peer.ip().to_string().into()))
            }
            Door::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let user = stream.peer_cred().map_or_else(|_| "?".to_owned(), |cred| cred.uid().to_string());
                Ok((Box::new(stream), format!("uid {user}").into()))
            }
        }
    }

    /// Serves connections until the server is to stop, and then until the last one has ended. Dropping it cuts them off.
    pub(super) async fn serve(self, app: Arc<App>) {
        let mut stop = app.stop.subscribe();
        let seats = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let (alive, mut ended) = mpsc::channel::<()>(1);
        let mut connections = tokio::task::JoinSet::new();
        loop {
            // Reaped, so that it does not grow.
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = told(&mut stop) => break,
                accepted = async {
                    // Never closed.
                    let seat = Arc::clone(&seats).acquire_owned().await.ok();
                    (seat, self.accept().await)
                } => accepted,
            };
            match accepted {
                (seat, Ok((stream, client))) => {
                    let (app, stop, alive) = (Arc::clone(&app), stop.clone(), alive.clone());
                    connections.spawn(async move {
                        app.metrics.connected();
                        connection(stream, client, &app, stop).await;
                        app.metrics.disconnected();
                        drop((seat, alive));
                    });
                }
                (_, Err(error)) => {
                    app.log.warn("accept", &[("error", error.to_string().into())]);
                    sleep(PAUSE).await;
                }
            }
        }
        drop((self, alive));
        let _ = ended.recv().await;
    }
}

async fn connection(stream: Box<dyn Stream>, client: Arc<str>, app: &Arc<App>, mut stop: watch::Receiver<bool>) {
    let service = service_fn(|request| Arc::clone(app).serve(Arc::clone(&client), request));
    let io = Patient { inner: TokioIo::new(stream), stuck: None };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIME).keep_alive(true).max_buf_size(64 << 10);
    let mut connection = std::pin::pin!(http.serve_connection(io, service));
    // How a connection ends is its client's business.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = told(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Waits until it is said, or nobody is left to say it.
pub(super) async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Removes a socket that nobody listens at. Nothing else is removed.
async fn clear(path: &Path) -> Result<(), ServeError> {
    let wrong = |what: &str| Err(ServeError::Socket { path: path.to_owned(), what: what.to_owned() });
    let Ok(about) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !about.file_type().is_socket() {
        return wrong("there is something else than a socket: choose another path");
    }
    if UnixStream::connect(path).await.is_ok() {
        return wrong("another program listens there: choose another path");
    }
    let removed = std::fs::remove_file(path);
    removed.or_else(|error| wrong(&format!("a socket that nobody listens at cannot be removed: {error}")))
}

/// A connection whose client has to go on reading.
struct Patient<T> {
    inner: T,
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<T: Write + Unpin> Patient<T> {
    fn watch<R>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if done.is_ready() {
            self.stuck = None;
            return done;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_TIME)));
        ready!(stuck.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Read + Unpin> Read for Patient<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for Patient<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.watch(cx, done)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.inner).poll_flush(cx);
        this.watch(cx, done)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.inner).poll_write_vectored(cx, bytes);
        this.watch(cx, done)
    }
}
