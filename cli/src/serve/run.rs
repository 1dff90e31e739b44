//! A server from its start to its end.

use super::error::{ApiError, ServeError};
use super::gate::Gate;
use super::http::App;
use super::job::Piece;
use super::listen::{Door, told};
use super::log::Log;
use super::metrics::Metrics;
use super::notify::Notify;
use super::options::ServeOptions;
use super::queue::Queue;
use super::state::{Phase, State};
use super::worker::{Loader, Worker};
use crate::arguments::DeviceChoice;
use crate::device;
use crate::error::CliError;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};

/// How long a worker may give no sign of life and still count as alive: a command of the software NPU takes that long.
const PATIENCE: Duration = Duration::from_secs(1900);
/// For what has been said to get out, at the end.
const FLUSH: Duration = Duration::from_secs(5);

/// Serves the model in `bundle` until a signal ends it.
pub(crate) fn run(bundle: &Path, options: &ServeOptions) -> Result<(), CliError> {
    let stem = bundle.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let name = options.name.clone().or(stem).unwrap_or_else(|| "qwen3.5".into());
    let (path, mut choice, wishes) = (bundle.to_owned(), options.run.clone(), options.wishes.clone());
    let load: Loader = Box::new(move || {
        let mut loaded = device::load(&path, &choice, true)?;
        if let Some(template) = wishes.template()? {
            loaded.chat.set_template(template);
        }
        if choice.device == DeviceChoice::Auto {
            // What it was found on it is found on again: a server that was fast does not become slow unasked.
            choice.device = if loaded.model.is_some() {
                DeviceChoice::Model
            } else {
                DeviceChoice::Node(loaded.device.clone().into())
            };
        }
        Ok(loaded)
    });
    serve(name, options, load, &mut |started| {
        let name = started.app.state.name();
        started.app.log.info("ready", &[("at", started.at.into()), ("model", name.into())]);
    })
}

/// A server whose model is in place.
#[derive(Debug)]
pub(super) struct Started<'a> {
    pub(super) app: &'a Arc<App>,
    /// Where it listens.
    pub(super) at: &'a str,
}

/// Serves what `load` gives. `ready` is told once there is a model.
pub(super) fn serve(
    name: String,
    options: &ServeOptions,
    load: Loader,
    ready: &mut dyn FnMut(Started<'_>),
) -> Result<(), CliError> {
    let gate = Gate::new(options)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
        .map_err(ServeError::System)?;
    let result = runtime.block_on(main(name, options, gate, load, ready));
    // A worker that is still loading, or waits for a device, is not waited for.
    runtime.shutdown_background();
    result
}

async fn main(
    name: String,
    options: &ServeOptions,
    gate: Gate,
    load: Loader,
    ready: &mut dyn FnMut(Started<'_>),
) -> Result<(), CliError> {
    let options = Arc::new(options.clone());
    let mut signals = Signals::install()?;
    let door = Door::open(&options.listen).await?;
    let log = Arc::new(Log::new(options.log));
    if options.anyone && !gate.has_key() && !options.listen.is_local() {
        log.warn(
            "open",
            &[("listen", door.place().into()), ("note", "anybody who reaches this address is answered".into())],
        );
    }
    let queue = Arc::new(Queue::new(options.queue));
    let state = Arc::new(State::new(name));
    let metrics = Arc::new(Metrics::default());
    let notify = Arc::new(Notify::from_environment());
    let worker = Worker {
        options: Arc::clone(&options),
        queue: Arc::clone(&queue),
        state: Arc::clone(&state),
        metrics: Arc::clone(&metrics),
        log: Arc::clone(&log),
        notify: Arc::clone(&notify),
        load,
    };
    let (loaded, is_loaded) = oneshot::channel();
    let (ended, mut has_ended) = oneshot::channel();
    let work = move || {
        let mut loaded = Some(loaded);
        let result = worker.run(&mut || {
            let _ = loaded.take().map(|loaded| loaded.send(()));
        });
        // Nobody waits any more where the server has given up on it.
        let _ = ended.send(result);
    };
    std::thread::Builder::new().name("worker".into()).spawn(work).map_err(ServeError::System)?;
    let place = door.place();
    log.info("listening", &[("at", place.as_str().into()), ("key", gate.has_key().into())]);
    let app = Arc::new(App::new(options, gate, queue, state, metrics, log));
    let mut doors = tokio::spawn(door.serve(Arc::clone(&app)));
    let watchdog = tokio::spawn(alive(Arc::clone(&app), Arc::clone(&notify)));
    let mut is_loaded = Some(is_loaded);
    let mut asked = app.stop.subscribe();
    let reason = loop {
        tokio::select! {
            Ok(()) = once(&mut is_loaded) => {
                is_loaded = None;
                notify.ready();
                ready(Started { app: &app, at: &place });
            }
            result = &mut has_ended => {
                watchdog.abort();
                // Before anybody asked for it: the first load has failed.
                return result.map_err(|_| ServeError::Worker)?.and(Err(ServeError::Worker.into()));
            }
            signal = signals.next() => break signal,
            () = told(&mut asked) => break "request",
        }
    };
    app.log.info("stopping", &[("reason", reason.into()), ("running", app.state.running().into())]);
    notify.stopping();
    let loading = app.state.phase() == Phase::Loading;
    app.state.stopping();
    app.stop.send_replace(true);
    for job in app.queue.close() {
        // One that has gone is told nothing.
        let _ = job.to.send(Piece::Failed(ApiError::Stopping));
    }
    let limit = app.options.stop_limit;
    let graceful = async {
        if !loading && timeout(limit, &mut has_ended).await.is_err() {
            app.state.hurry();
            let _ = timeout(FLUSH, &mut has_ended).await;
        }
        let _ = timeout(FLUSH, &mut doors).await;
    };
    let again = tokio::select! {
        () = graceful => false,
        _ = signals.next() => true,
    };
    watchdog.abort();
    doors.abort();
    app.log.info("stopped", &[("at_once", again.into())]);
    if again { Err(CliError::Interrupted) } else { Ok(()) }
}

/// Waits for what comes once.
async fn once(receiver: &mut Option<oneshot::Receiver<()>>) -> Result<(), oneshot::error::RecvError> {
    match receiver {
        Some(receiver) => receiver.await,
        None => std::future::pending().await,
    }
}

/// Signs of life for whoever restarts what has none: as long as the worker gives some.
async fn alive(app: Arc<App>, notify: Arc<Notify>) {
    let Some(period) = notify.period() else { return };
    let mut ticks = interval(period);
    loop {
        ticks.tick().await;
        let loading = app.state.phase() == Phase::Loading;
        if loading || app.state.silence() < PATIENCE {
            notify.alive();
        }
    }
}

/// The signals that end a server.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn install() -> Result<Signals, ServeError> {
        let term = signal(SignalKind::terminate()).map_err(ServeError::System)?;
        let int = signal(SignalKind::interrupt()).map_err(ServeError::System)?;
        Ok(Signals { term, int })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}
