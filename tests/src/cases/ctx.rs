//! What a case is given.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use amdxdna_ioctl::abi::{self, drm, query, request};
use amdxdna_ioctl::{Errno, Opener};
use bytemuck::Zeroable;
use npu_model::{Config, Model};

use super::client::{Client, PAGE};
use super::verdict::{Stop, name};

/// How the device addresses memory, as its answers show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The device address of a buffer is the user address of its mapping.
    Sva,
    /// Addresses of the driver's own.
    Iova,
    /// Addresses in a carve-out.
    Carveout,
}

/// The device under test, for one case.
#[derive(Debug)]
pub struct Ctx {
    opener: Arc<dyn Opener>,
    node: PathBuf,
    model: Option<Config>,
    mode: Mode,
    minor: u32,
    notes: Mutex<Vec<String>>,
}

/// What every case has to know of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) mode: Mode,
    pub(super) minor: u32,
}

impl Facts {
    /// Asks the device.
    pub(super) fn of(opener: &dyn Opener, node: &Path) -> Result<Self, String> {
        let step = |what: &'static str| move |errno: Errno| format!("{what}: {}", name(errno));
        let client = Client::new(opener.open(node).map_err(step("open"))?);
        let mut version = drm::Version::zeroed();
        client.call(request::VERSION, &mut version).map_err(step("VERSION"))?;
        if version.version_major != 0 {
            return Err(format!("driver version {}.{}", version.version_major, version.version_minor));
        }
        let bo = client.share(PAGE as u64).map_err(step("CREATE_BO"))?;
        let unmapped = client.address(bo).map_err(step("GET_BO_INFO"))?;
        let mut sync = abi::SyncBo { handle: bo, size: PAGE as u64, ..Zeroable::zeroed() };
        let mode = if unmapped == abi::INVALID_ADDR {
            Mode::Sva
        } else if client.call(request::SYNC_BO, &mut sync) == Err(Errno::OPNOTSUPP) {
            Mode::Carveout
        } else {
            Mode::Iova
        };
        Ok(Self { mode, minor: version.version_minor.unsigned_abs() })
    }
}

impl Ctx {
    pub(super) fn new(opener: Arc<dyn Opener>, node: PathBuf, model: Option<Config>, facts: Facts) -> Self {
        Self { opener, node, model, mode: facts.mode, minor: facts.minor, notes: Mutex::default() }
    }

    /// How the device addresses memory.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Minor version of the driver.
    #[must_use]
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Whether device addresses are user addresses.
    pub(super) fn sva(&self) -> bool {
        self.mode == Mode::Sva
    }

    /// Whether rules of the driver of August 2026 apply.
    pub(super) fn newer(&self) -> bool {
        self.minor >= 16
    }

    pub(super) fn node(&self) -> &Path {
        &self.node
    }

    /// A client of the case's own.
    pub(super) fn open(&self) -> Result<Client, Stop> {
        Ok(Client::new(self.opener.open(&self.node)?))
    }

    /// Says something about the run, beside the outcome.
    pub(super) fn note(&self, text: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    pub(super) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The settings of the device, where it is in this process.
    pub(super) fn in_process(&self) -> Option<&Config> {
        self.model.as_ref()
    }

    /// A device of the same sort for this case alone, changed as the case wants it.
    pub(super) fn twin(&self, change: impl FnOnce(&mut Config)) -> Result<Arc<Model>, Stop> {
        let Some(config) = &self.model else {
            return Err(Stop::skip("the device cannot be told to show faults; the software NPU can"));
        };
        let mut config = Config { tdr_ms: 30, destroy_wait_ms: 30, ..config.clone() };
        change(&mut config);
        Ok(Model::new(config))
    }

    /// How many contexts the device has room for, and how many there are.
    pub(super) fn room(&self, client: &Client) -> Result<(u64, u64), Errno> {
        let info: query::ResourceInfo = client.get(12)?;
        Ok((info.npu_task_max, info.npu_task_curr))
    }

    /// Waits for the device to have no more than `n` contexts: work in flight may keep a process' memory, and with it
    /// its mappings and its file, for a while after its end.
    pub(super) fn emptied(&self, client: &Client, n: u64) -> Result<(), Stop> {
        for _ in 0..500 {
            if self.room(client)?.1 <= n {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Stop::fail("a context is left behind"))
    }

    /// Skips the case unless nobody else has a context on the device.
    pub(super) fn alone(&self, client: &Client) -> Result<u64, Stop> {
        match self.room(client)? {
            (most, 0) => Ok(most),
            (_, n) => Err(Stop::skip(format!("{n} contexts of others are on the device"))),
        }
    }
}

/// A client of a twin.
pub(super) fn client_of(model: &Model) -> Client {
    Client::new(model.open_client())
}
