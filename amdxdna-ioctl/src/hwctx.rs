//! Hardware contexts: a share of the array, its CUs, and a queue.

use crate::abi::drm::SyncobjWaitFlags;
use crate::abi::{CuConfig, DEFAULT_MAX_OPC, MAX_NUM_CUS, QosInfo};
use crate::bo::{Bo, BoKind};
use crate::bound::Flight;
use crate::command::Command;
use crate::deadline::Deadline;
use crate::device::Device;
use crate::door::Errno;
use crate::error::{Error, Result};
use crate::ioctl;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Heap that a context takes for the driver's own four command buffers: 128 KiB of addresses.
const HEAP_A_CONTEXT: u64 = 128 << 10;

/// How a context is made.
#[derive(Clone, Copy, Debug)]
pub struct HwCtxOptions {
    /// Columns; all of the array by default.
    pub columns: Option<u16>,
    /// Hints; none by default, which gives the top clock.
    pub qos: QosInfo,
    /// Operations a cycle; the driver stores it and nothing else.
    pub max_opc: u32,
}

impl Default for HwCtxOptions {
    fn default() -> Self {
        HwCtxOptions { columns: None, qos: QosInfo::default(), max_opc: DEFAULT_MAX_OPC }
    }
}

/// One CU of a context's configuration.
#[derive(Debug)]
pub struct Cu {
    /// A DEV BO with the PDI, written back.
    pub pdi: Bo,
    /// Functional of the CU, 0 for the first.
    pub func: u8,
}

/// The driver's context.
#[derive(Debug)]
struct Context {
    handle: u32,
    device: Arc<Device>,
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(door) = self.device.client().door_to_close() {
            let _ = ioctl::destroy_hwctx(door, self.handle);
        }
    }
}

/// A syncobj of this client.
#[derive(Debug)]
struct Syncobj {
    handle: u32,
    device: Arc<Device>,
}

impl Drop for Syncobj {
    fn drop(&mut self) {
        if let Some(door) = self.device.client().door_to_close() {
            let _ = ioctl::syncobj_destroy(door, self.handle);
        }
    }
}

/// What has to live as long as a command runs.
#[derive(Debug)]
pub(crate) enum Held {
    /// The packet of a [`Command`].
    Packet(#[expect(dead_code, reason = "held, not used")] Bo),
    /// Packet, stream and buffers of a [`Bound`](crate::Bound).
    Flight(#[expect(dead_code, reason = "held, not used")] Flight),
}

/// A hardware context. Its commands run in the order of their sequence numbers; there is no order between contexts.
///
/// Any thread may submit while others wait.
#[derive(Debug)]
pub struct HwCtx {
    // Drop order, context before CU BO before heap before file: the context first (its last commands end, nothing uses
    // the memory any more), its timeline, what commands that nobody waited for used, then the PDIs; the heap and
    // the file go with the last holder of the device.
    context: Context,
    timeline: Syncobj,
    /// What commands that nobody waits for any more still use, with their sequence numbers.
    held: Mutex<Vec<(u64, Held)>>,
    /// The driver resolves PDI handles again after each suspend: they stay open as long as the context.
    cus: Mutex<Vec<Cu>>,
    /// All commands with a smaller sequence number are known to be done.
    done: AtomicU64,
}

impl HwCtx {
    /// Makes a context over some columns, the device heap growing if it has no room for the driver's part.
    ///
    /// # Errors
    /// [`Error::Columns`], [`Error::HeapFull`], [`Error::Ioctl`]; of the last, `EINVAL` says how many of the device's
    /// context slots are in use.
    pub fn create(device: &Arc<Device>, options: &HwCtxOptions) -> Result<Arc<HwCtx>> {
        let columns = device.columns();
        let asked = options.columns.unwrap_or(columns);
        if asked == 0 || asked > columns {
            return Err(Error::Columns { asked, columns });
        }
        let tiles = u32::from(asked) * u32::from(device.core_rows());
        let door = device.door()?;
        let made = device
            .heap()
            .with_room(HEAP_A_CONTEXT, || ioctl::create_hwctx(door, &options.qos, tiles, options.max_opc))
            .map_err(|error| with_slots(device, error))?;
        Ok(Arc::new(HwCtx {
            context: Context { handle: made.handle, device: Arc::clone(device) },
            timeline: Syncobj { handle: made.syncobj_handle, device: Arc::clone(device) },
            held: Mutex::default(),
            cus: Mutex::default(),
            done: AtomicU64::new(0),
        }))
    }

    /// Gives the context its CUs, whose indices are their places in `cus`; once, before the first command.
    ///
    /// The driver does not wait for the firmware to load them: a PDI that it does not like shows as failing commands.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::Foreign`], [`Error::Ioctl`].
    pub fn config_cu(&self, cus: Vec<Cu>) -> Result<()> {
        if cus.is_empty() || cus.len() > MAX_NUM_CUS {
            return Err(Error::Size { what: "list of CUs", bytes: cus.len() as u64, limit: MAX_NUM_CUS as u64 });
        }
        let mut configs = Vec::with_capacity(cus.len());
        for cu in &cus {
            if !Arc::ptr_eq(cu.pdi.device(), self.device()) || cu.pdi.kind() != BoKind::Dev {
                return Err(Error::Foreign { what: "a CU's BO (it has to be a DEV BO of the context's device)" });
            }
            configs.push(CuConfig { cu_bo: cu.pdi.handle(), cu_func: cu.func, pad: [0; 3] });
        }
        // Under the lock, so that a second call cannot take the place of the first one's BOs.
        let mut kept = self.cus.lock().unwrap_or_else(PoisonError::into_inner);
        ioctl::config_cu(self.device().door()?, self.handle(), &configs)?;
        kept.extend(cus);
        Ok(())
    }

    /// Puts a raw command into the queue and returns its sequence number: for packets that are no [`Bound`](crate::Bound)
    /// (chains, other opcodes, packets that are meant to be wrong). `args` are the handles of the BOs that it uses
    /// (the stream's, the buffers'), in any order; one that is there twice is passed once.
    ///
    /// Blocks while four commands of the context are outstanding.
    ///
    /// # Safety
    /// The packet and the streams that it names address memory by number, and where the device shares the process'
    /// address space that is any memory of the process. All that they let the device read or write must be memory of
    /// buffer objects that live until the command is known to be done or the context is destroyed; nothing of this
    /// program may meanwhile refer to what the device writes, nor write what it reads.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is in flight, [`Error::NotSubmitted`] if nothing has been written into it,
    /// [`Error::Foreign`], [`Error::Ioctl`]. The command is as it was, then.
    #[allow(unsafe_code)]
    pub unsafe fn submit(self: &Arc<Self>, command: &mut Command, args: &[u32]) -> Result<u64> {
        if !Arc::ptr_eq(command.device(), self.device()) {
            return Err(Error::Foreign { what: "the command" });
        }
        command.prepare()?;
        let twice = |i: usize| args[..i].contains(&args[i]);
        let once: Vec<u32> = (0..args.len()).filter(|&i| !twice(i)).map(|i| args[i]).collect();
        // SAFETY: the caller's promise; the command keeps its packet until the driver is done with it.
        let seq = unsafe { ioctl::exec_cmd(self.device().door()?, self.handle(), command.handle(), &once) }?;
        command.submitted(Arc::clone(self), seq);
        Ok(seq)
    }

    /// Waits until the command `seq`, and so all before it, is done, whatever its outcome. (The timeline cannot tell
    /// point 0 from the end of what is in it: waiting for command 0 waits for all that has been submitted by then.)
    ///
    /// # Errors
    /// [`Error::Timeout`] if it is not done at the deadline; [`Error::Ioctl`].
    pub fn wait(&self, seq: u64, deadline: Deadline) -> Result<()> {
        if self.is_done(seq) {
            return Ok(());
        }
        let point = [(self.timeline.handle, seq)];
        match ioctl::syncobj_timeline_wait(self.device().door()?, &point, deadline, SyncobjWaitFlags::empty()) {
            Ok(_) => {
                self.set_done(seq);
                Ok(())
            }
            Err(error) if error.errno == Errno::TIME => Err(Error::Timeout { context: self.handle(), seq }),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until one of several commands, of contexts of one device, is done and returns its place.
    ///
    /// # Errors
    /// [`Error::NotSubmitted`] for none, [`Error::Timeout`] naming the first, [`Error::Foreign`], [`Error::Ioctl`].
    pub fn wait_any(commands: &[(&HwCtx, u64)], deadline: Deadline) -> Result<usize> {
        let &[(first, seq), ..] = commands else { return Err(Error::NotSubmitted) };
        if commands.iter().any(|(context, _)| !Arc::ptr_eq(context.device(), first.device())) {
            return Err(Error::Foreign { what: "a context that is waited for" });
        }
        let points: Vec<_> = commands.iter().map(|(context, seq)| (context.timeline.handle, *seq)).collect();
        match ioctl::syncobj_timeline_wait(first.device().door()?, &points, deadline, SyncobjWaitFlags::empty()) {
            Ok(index) => {
                let which = index as usize;
                let (context, seq) = commands.get(which).ok_or_else(|| Error::Implausible {
                    what: format!("that point {index} of {} was first", commands.len()),
                })?;
                context.set_done(*seq);
                Ok(which)
            }
            Err(error) if error.errno == Errno::TIME => Err(Error::Timeout { context: first.handle(), seq }),
            Err(error) => Err(error.into()),
        }
    }

    /// It is known, without asking the driver, that the command is done.
    #[must_use]
    pub fn is_done(&self, seq: u64) -> bool {
        seq < self.done.load(Ordering::Acquire)
    }

    pub(crate) fn set_done(&self, seq: u64) {
        self.done.fetch_max(seq.saturating_add(1), Ordering::AcqRel);
    }

    /// The context's handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.context.handle
    }

    /// The syncobj whose points are the context's sequence numbers.
    #[must_use]
    pub fn syncobj(&self) -> u32 {
        self.timeline.handle
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.context.device
    }

    /// Commands that nobody waits for any more whose packets and buffers are kept, because the device may still use
    /// them.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Keeps what a command uses until it is known to be done, or the context is gone.
    pub(crate) fn hold(&self, seq: u64, what: Held) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|&(seq, _)| !self.is_done(seq));
        held.push((seq, what));
    }
}

/// Says, with the `EINVAL` of CREATE_HWCTX, how full the device is.
fn with_slots(device: &Device, error: Error) -> Error {
    let Error::Ioctl(mut error) = error else { return error };
    if error.errno == Errno::INVAL
        && let Ok(resources) = device.resource_info()
    {
        let (used, all) = (resources.npu_task_curr, resources.npu_task_max);
        error.remedy = if used >= all {
            format!("{used} of {all} contexts of the device are in use: close other programs that use the NPU")
        } else {
            format!(
                "{used} of {all} contexts of the device are in use, so the firmware has refused, or the QoS is too high: \
                 load the driver anew (sudo modprobe -r amdxdna; sudo modprobe amdxdna), else reboot; sudo dmesg | \
                 grep -i amdxdna has the driver's words"
            )
        };
    }
    error.into()
}
