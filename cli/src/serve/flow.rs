//! From the worker to a client: the pieces of an answer, and the body that they become.

use super::error::ApiError;
use super::job::{Job, Piece};
use super::metrics::Metrics;
use super::queue::Place;
use super::reply::Reply;
use super::responses_reply::Response;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use runtime::chat::Cancel;
use serde_json::Value;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Sleep, sleep, timeout_at};

/// How long a stream is silent at most: a comment then shows whether the client is still there.
const SILENCE: Duration = Duration::from_secs(10);
/// A stream's pieces are put together up to this.
const FRAME: usize = 32 << 10;

/// An answer on its way. Dropped, it gives up its place, and ends what is being done for it.
#[derive(Debug)]
pub(super) struct Flow {
    pieces: UnboundedReceiver<Piece>,
    place: Option<Place<Job>>,
    cancel: Cancel,
    ended: bool,
    metrics: Arc<Metrics>,
    /// Memory that is set apart for the request.
    _held: Held,
}

/// For its body, and for its pictures.
type Held = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl Flow {
    pub(super) fn new(
        pieces: UnboundedReceiver<Piece>,
        place: Place<Job>,
        cancel: Cancel,
        metrics: Arc<Metrics>,
        held: Held,
    ) -> Flow {
        Flow { pieces, place: Some(place), cancel, ended: false, metrics, _held: held }
    }

    /// Waits until it is being worked on, or was refused.
    pub(super) async fn begin(&mut self, since: Instant, deadline: Instant) -> Result<Piece, ApiError> {
        match timeout_at(deadline.into(), self.next()).await {
            Ok(Piece::Failed(error)) => Err(error),
            Ok(piece) => Ok(piece),
            Err(_) => {
                // The server's own doing: nobody has gone away.
                self.ended = true;
                Err(ApiError::Deadline((deadline - since).as_secs()))
            }
        }
    }

    /// The next piece. After the end there is none.
    pub(super) async fn next(&mut self) -> Piece {
        let piece = self.pieces.recv().await;
        self.took(piece)
    }

    fn took(&mut self, piece: Option<Piece>) -> Piece {
        let piece = piece.unwrap_or_else(|| Piece::Failed(lost()));
        self.ended |= matches!(piece, Piece::Done(_) | Piece::Failed(_));
        piece
    }

    /// All pieces behind the first one, to the end.
    pub(super) async fn rest(&mut self, first: Piece) -> Vec<Piece> {
        let mut pieces = vec![first];
        while !self.ended {
            pieces.push(self.next().await);
        }
        pieces
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.cancel.cancel();
        drop(self.place.take());
        if !self.ended {
            self.metrics.cancelled();
        }
    }
}

fn lost() -> ApiError {
    ApiError::Internal("the answer was lost inside of the server".into())
}

/// Tells an answer in the form that was asked for.
#[derive(Debug)]
pub(super) enum Teller {
    Reply(Box<Reply>),
    Response(Box<Response>),
}

impl Teller {
    /// What a piece adds to a stream. Gives whether the stream ends with it.
    fn stream(&mut self, piece: Piece, out: &mut String) -> bool {
        match self {
            Self::Reply(reply) => reply.stream(piece, out),
            Self::Response(response) => response.stream(piece, out),
        }
    }

    /// The whole answer, of all its pieces.
    pub(super) fn whole(self, pieces: Vec<Piece>) -> Result<Value, ApiError> {
        match self {
            Self::Reply(reply) => reply.whole(pieces),
            Self::Response(response) => response.whole(pieces),
        }
    }
}

/// The body of a response.
#[derive(Debug)]
pub(super) enum Out {
    /// As it is.
    Whole(Option<Bytes>),
    /// As it comes.
    Stream(Box<Stream>),
}

/// A stream of events.
#[derive(Debug)]
pub(super) struct Stream {
    flow: Flow,
    teller: Teller,
    /// What has been read already.
    first: Option<Piece>,
    idle: Pin<Box<Sleep>>,
}

impl Out {
    pub(super) fn text(text: impl Into<Bytes>) -> Out {
        Out::Whole(Some(text.into()))
    }

    pub(super) fn stream(flow: Flow, teller: Teller, first: Piece) -> Out {
        Out::Stream(Box::new(Stream { flow, teller, first: Some(first), idle: Box::pin(sleep(SILENCE)) }))
    }
}

impl Stream {
    /// Everything that is there; nothing after the end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.flow.ended && self.first.is_none() {
            return Poll::Ready(None);
        }
        let mut out = String::new();
        while out.len() < FRAME {
            let piece = match self.first.take() {
                Some(piece) => piece,
                None => match self.flow.pieces.poll_recv(cx) {
                    Poll::Ready(piece) => self.flow.took(piece),
                    Poll::Pending => break,
                },
            };
            if self.teller.stream(piece, &mut out) {
                break;
            }
        }
        if out.is_empty() {
            if self.idle.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            out.push_str(": working\n\n");
        }
        self.idle.as_mut().reset(tokio::time::Instant::now() + SILENCE);
        Poll::Ready(Some(out.into()))
    }
}

impl Body for Out {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = match self.get_mut() {
            Out::Whole(bytes) => Poll::Ready(bytes.take()),
            Out::Stream(stream) => stream.poll(cx),
        };
        frame.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Out::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Out::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Out::Stream(_) => SizeHint::default(),
        }
    }
}
