//! One open NPU.

use crate::abi::drm::cap;
use crate::abi::query::{
    AsyncError, BoUsage, HwctxEntry, PowerMode, QueryAieMetadata, QueryAieVersion, QueryClockMetadata,
    QueryFirmwareVersion, QuerySensor, ResourceInfo,
};
use crate::abi::{DRIVER_MAJOR, DRIVER_NAME};
use crate::door::{self, Door};
use crate::error::{Error, Result};
use crate::fork::{self, Opener};
use crate::heap::Heap;
use crate::ioctl::{self, DriverVersion};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The door of an open device, and the only process that may use it: the NPU sees the address space of the opener.
#[derive(Debug)]
pub(crate) struct Client {
    door: Arc<dyn Door>,
    opener: Opener,
}

impl Client {
    fn new(door: Arc<dyn Door>) -> Self {
        Client { door, opener: Opener::new() }
    }

    /// The door, unless the process has forked.
    pub(crate) fn door(&self) -> Result<&dyn Door> {
        if self.opener.is_here() {
            Ok(&*self.door)
        } else {
            Err(Error::Forked { opener: self.opener.pid(), process: fork::pid() })
        }
    }

    /// The door for giving things back; nothing in a forked child, whose handles are still its parent's.
    pub(crate) fn door_to_close(&self) -> Option<&dyn Door> {
        self.door().ok()
    }
}

/// One open NPU: a client of the driver with its own handles, contexts and device heap.
///
/// Everything made of it ([`Bo`](crate::Bo), [`HwCtx`](crate::HwCtx)) holds it, so the file closes last. All methods
/// may be called from any thread. After `fork()` it is of no use to the child, and says so.
#[derive(Debug)]
pub struct Device {
    // Drop order: the heap's mappings and handles go while the file is still open; the file closes with the client.
    heap: Heap,
    client: Arc<Client>,
    node: PathBuf,
    version: DriverVersion,
    metadata: QueryAieMetadata,
}

impl Device {
    /// Opens the NPU at `node`: checks driver name, major version and timelines (VERSION, GET_CAP), makes the first
    /// 64 MiB of the device heap and maps it on a 64 MiB boundary, reads the array's geometry (GET_INFO).
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotAmdxdna`], [`Error::DriverMajor`], [`Error::NoTimelines`], and those of the heap.
    pub fn open(opener: &dyn door::Opener, node: &Path) -> Result<Arc<Device>> {
        let door = opener.open(node).map_err(|errno| Error::Open { node: node.to_owned(), errno })?;
        let client = Arc::new(Client::new(door));
        let version = ioctl::version(client.door()?)?;
        if version.name != DRIVER_NAME {
            return Err(Error::NotAmdxdna { node: node.to_owned(), driver: version.name });
        }
        if version.major != DRIVER_MAJOR {
            let DriverVersion { major, minor, .. } = version;
            return Err(Error::DriverMajor { node: node.to_owned(), major, minor });
        }
        if ioctl::get_cap(client.door()?, cap::SYNCOBJ_TIMELINE)? != 1 {
            return Err(Error::NoTimelines);
        }
        let heap = Heap::new(Arc::clone(&client))?;
        let metadata = ioctl::aie_metadata(client.door()?)?;
        if metadata.cols == 0 || metadata.core.row_count == 0 {
            let what = format!("an array of {} columns and {} core rows", metadata.cols, metadata.core.row_count);
            return Err(Error::Implausible { what });
        }
        Ok(Arc::new(Device { heap, client, node: node.to_owned(), version, metadata }))
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The door, for requests that have no method here.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn door(&self) -> Result<&dyn Door> {
        self.client.door()
    }

    /// The node that was opened.
    #[must_use]
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// The driver's version.
    #[must_use]
    pub fn version(&self) -> &DriverVersion {
        &self.version
    }

    /// The array's geometry, as read at open.
    #[must_use]
    pub fn metadata(&self) -> &QueryAieMetadata {
        &self.metadata
    }

    /// Columns of the array.
    #[must_use]
    pub fn columns(&self) -> u16 {
        self.metadata.cols
    }

    /// Core tiles of a column.
    #[must_use]
    pub fn core_rows(&self) -> u16 {
        self.metadata.core.row_count
    }

    /// The device heap.
    #[must_use]
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Checks that the driver has what came with minor version `needs`.
    ///
    /// # Errors
    /// [`Error::DriverMinor`].
    pub fn require_minor(&self, needs: i32, what: &'static str) -> Result<()> {
        match self.version.minor {
            minor if minor >= needs => Ok(()),
            minor => Err(Error::DriverMinor { what, needs, minor }),
        }
    }

    /// The firmware's version.
    ///
    /// # Errors
    /// [`Error::Ioctl`].
    pub fn firmware_version(&self) -> Result<QueryFirmwareVersion> {
        Ok(ioctl::firmware_version(self.door()?)?)
    }

    /// The array's version.
    ///
    /// # Errors
    /// [`Error::Ioctl`].
    pub fn aie_version(&self) -> Result<QueryAieVersion> {
        Ok(ioctl::aie_version(self.door()?)?)
    }

    /// Clocks.
    ///
    /// # Errors
    /// [`Error::Ioctl`].
    pub fn clocks(&self) -> Result<QueryClockMetadata> {
        Ok(ioctl::clock_metadata(self.door()?)?)
    }

    /// Sensors.
    ///
    /// # Errors
    /// [`Error::Ioctl`].
    pub fn sensors(&self) -> Result<Vec<QuerySensor>> {
        Ok(ioctl::sensors(self.door()?)?)
    }

    /// What the device has and what is in use, context slots above all. Needs minor 4.
    ///
    /// # Errors
    /// [`Error::DriverMinor`], [`Error::Ioctl`].
    pub fn resource_info(&self) -> Result<ResourceInfo> {
        self.require_minor(4, "reading the device's resources")?;
        Ok(ioctl::resource_info(self.door()?)?)
    }

    /// All contexts on the device that this user may see, with their health. Needs minor 1.
    ///
    /// # Errors
    /// [`Error::DriverMinor`], [`Error::Ioctl`].
    pub fn contexts(&self) -> Result<Vec<HwctxEntry>> {
        self.require_minor(1, "listing contexts")?;
        Ok(ioctl::hwctx_entries(self.door()?)?)
    }

    /// The device's last asynchronous array error. Needs minor 2.
    ///
    /// # Errors
    /// [`Error::DriverMinor`], [`Error::Ioctl`].
    pub fn last_async_error(&self) -> Result<Option<AsyncError>> {
        self.require_minor(2, "reading the last asynchronous error")?;
        Ok(ioctl::last_async_error(self.door()?)?)
    }

    /// BO memory that this process has on the device. Needs minor 8.
    ///
    /// # Errors
    /// [`Error::DriverMinor`], [`Error::Ioctl`].
    pub fn bo_usage(&self) -> Result<BoUsage> {
        self.require_minor(8, "reading BO usage")?;
        Ok(ioctl::bo_usage(self.door()?, i64::from(self.client.opener.pid()))?)
    }

    /// The power mode; `Err` of the number for one that is not known.
    ///
    /// # Errors
    /// [`Error::Ioctl`].
    pub fn power_mode(&self) -> Result<Result<PowerMode, u8>> {
        Ok(ioctl::power_mode(self.door()?)?)
    }

    /// Sets the power mode of the device, for everyone; root only.
    ///
    /// # Errors
    /// [`Error::Ioctl`].
    pub fn set_power_mode(&self, mode: PowerMode) -> Result<()> {
        Ok(ioctl::set_power_mode(self.door()?, mode)?)
    }
}
