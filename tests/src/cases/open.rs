//! Opening the node, and the DRM core's part of every ioctl: numbers, sizes, copy-back, version, capabilities.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, drm, request};
use bytemuck::Zeroable;

use super::Expect::Same;
use super::client::addr_of;
use super::ctx::Ctx;
use super::verdict::Verdict;

cases! { Open;
    twice: Same("two opens give two clients, each with its own handles");
    many_times: Same("64 clients at once, and all of them gone afterwards");
    reopen: Same("a client that is closed gives back its handles");
    version: Same("amdxdna_accel_driver 0.10 or newer; whole lengths, strings cut to the room");
    version_lengths: Same("with no room for strings VERSION gives their lengths alone");
    capabilities: Same("PRIME 3, SYNCOBJ 1, SYNCOBJ_TIMELINE 1");
    unknown_capability: Same("a capability that nobody has: EOPNOTSUPP or EINVAL");
    unknown_numbers: Same("ioctl numbers without a handler give EINVAL");
    argument_sizes: Same("a short argument is extended with zeroes, a long one cut");
    copy_back: Same("the argument is written back on failure too");
    null_strings: Same("a string of VERSION that cannot be written gives EFAULT");
    wait_cmd: Same("WAIT_CMD has no handler: EOPNOTSUPP");
    set_state: Same("SET_STATE: EACCES for all but root, whom it refuses what it does not know");
    client_names: Same("SET_CLIENT_NAME takes printable names of up to 63 characters");
}

fn twice(ctx: &Ctx) -> Verdict {
    let (one, two) = (ctx.open()?, ctx.open()?);
    let bo = one.share(4096)?;
    same!(two.info(bo).map(drop), Err(Errno::NOENT), "the second client's view of the first one's handle");
    same!(two.close(bo), Err(Errno::INVAL));
    one.close(bo)?;
    Ok(())
}

fn many_times(ctx: &Ctx) -> Verdict {
    let clients = (0..64).map(|_| ctx.open()).collect::<Result<Vec<_>, _>>()?;
    for client in &clients {
        same!(client.share(4096)?, 1, "the first handle of each");
    }
    Ok(())
}

fn reopen(ctx: &Ctx) -> Verdict {
    for _ in 0..16 {
        let client = ctx.open()?;
        let bo = client.share(1 << 20)?;
        same!(bo, 1, "nothing is left of the last one");
        client.map(bo, 1 << 20)?;
    }
    Ok(())
}

fn version_lengths(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut version = drm::Version::zeroed();
    client.call(request::VERSION, &mut version)?;
    same!(version.name_len, "amdxdna_accel_driver".len() as u64);
    same!(version.version_minor.unsigned_abs(), ctx.minor());
    Ok(())
}

fn unknown_capability(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut cap = drm::GetCap { capability: 0x7777, value: 99 };
    let refused = client.call(request::GET_CAP, &mut cap);
    hold!(matches!(refused, Err(Errno::OPNOTSUPP | Errno::INVAL)), "{refused:?}");
    Ok(())
}

fn null_strings(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut version = drm::Version { name_len: 6, name: 8, ..Zeroable::zeroed() };
    same!(client.call(request::VERSION, &mut version), Err(Errno::FAULT));
    Ok(())
}

fn unknown_numbers(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for nr in [0x4bu32, 0x9f, 0x3e, 0xf0] {
        let request = 0xC008_6400 | nr;
        same!(client.call(request, &mut [0u32; 2]), Err(Errno::INVAL), "{nr:#x}");
    }
    Ok(())
}

fn argument_sizes(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let with_size = |word: u32, size: u32| word & !(0x3fff << 16) | size << 16;
    // CREATE_BO without its last eight bytes: the type reads as 0, which is none.
    let mut short = [0u64, 0, 4096];
    same!(client.call(with_size(request::CREATE_BO, 24), &mut short), Err(Errno::INVAL));
    // And with eight more, which nobody reads.
    let mut long = [0u64, 0, 4096, 1, u64::MAX];
    client.call(with_size(request::CREATE_BO, 40), &mut long)?;
    same!((long[3] >> 32, long[4]), (1, u64::MAX), "handle 1 and untouched bytes behind it");
    Ok(())
}

fn copy_back(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut cap = drm::GetCap { capability: 0x7777, value: 99 };
    hold!(client.call(request::GET_CAP, &mut cap).is_err());
    same!(cap.value, 0, "the handler had cleared it");
    Ok(())
}

fn version(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut name = [0u8; 6];
    let mut version = drm::Version { name_len: 6, name: name.as_mut_ptr().addr() as u64, ..Zeroable::zeroed() };
    client.call(request::VERSION, &mut version)?;
    same!((version.version_major, &name), (0, b"amdxdn"));
    same!(version.name_len, "amdxdna_accel_driver".len() as u64);
    same!(version.desc_len, "AMD XDNA DRM implementation".len() as u64);
    hold!(version.version_minor >= 10);
    Ok(())
}

fn capabilities(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for (capability, value) in [(5, 3), (0x13, 1), (0x14, 1)] {
        let mut cap = drm::GetCap { capability, value: 0 };
        client.call(request::GET_CAP, &mut cap)?;
        same!(cap.value, value, "{capability:#x}");
    }
    Ok(())
}

fn wait_cmd(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut wait = abi::WaitCmd::zeroed();
    same!(client.call(request::WAIT_CMD, &mut wait), Err(Errno::OPNOTSUPP));
    Ok(())
}

fn set_state(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mode = 3u64;
    // Nothing that a root user's run could change.
    let mut state = abi::SetState { param: 99, buffer_size: 8, buffer: addr_of(&mode) };
    let here = ctx.in_process().map(|config| config.faults.privileged);
    let root = here.unwrap_or_else(|| rustix::process::geteuid().is_root());
    let errno = if root { Errno::OPNOTSUPP } else { Errno::ACCESS };
    same!(client.call(request::SET_STATE, &mut state), Err(errno));
    Ok(())
}

fn client_names(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let set = |name: &[u8]| {
        let mut a = drm::SetClientName { name_len: name.len() as u64, name: name.as_ptr().addr() as u64 };
        client.call(request::SET_CLIENT_NAME, &mut a)
    };
    same!(set(b"qwen"), Ok(()));
    same!(set(b"two words\n"), Err(Errno::INVAL));
    same!(set(&[b'x'; 65]), Err(Errno::INVAL));
    Ok(())
}
