//! Which system calls of the client are asked about: as few as possible, since each costs two changes of process.

use libc::sock_filter;

/// File numbers that open device files get in the client, so that the filter knows them. Below the usual limit of 1024.
pub(super) const FDS: std::ops::Range<u32> = 880..1008;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// The type byte of DRM ioctls, in place.
const DRM_TYPE: u32 = (b'd' as u32) << 8;
const TYPE_MASK: u32 = 0xff00;

/// Offsets in `struct seccomp_data`; of arguments, the lower halves.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn argument(n: u32) -> u32 {
    16 + 8 * n
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(offset: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn and(mask: u32) -> sock_filter {
    statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, mask)
}

fn verdict(verdict: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, verdict)
}

fn jump(condition: u32, k: u32, jt: usize, jf: usize) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | condition | libc::BPF_K) as u16, jt: jt as u8, jf: jf as u8, k }
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const ASK: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// The program. Each call has a block of its own that ends in a verdict, so that jumps stay inside a block.
pub(super) fn program() -> Vec<sock_filter> {
    let is = |value| [jump(libc::BPF_JEQ, value, 0, 1), verdict(ASK), verdict(ALLOW)];
    // Everything that reads files would come by otherwise; the node is opened for reading and writing.
    let read_write = |argument_number| {
        let mut block = vec![load(argument(argument_number)), and(libc::O_ACCMODE as u32)];
        block.extend(is(libc::O_RDWR as u32));
        block
    };
    let ours = |argument_number| {
        vec![
            load(argument(argument_number)),
            jump(libc::BPF_JGE, FDS.start, 0, 2),
            jump(libc::BPF_JGE, FDS.end, 1, 0),
            verdict(ASK),
            verdict(ALLOW),
        ]
    };
    let mut drm = vec![load(argument(1)), and(TYPE_MASK)];
    drm.extend(is(DRM_TYPE));
    let cases = [
        (libc::SYS_ioctl, drm),
        (libc::SYS_openat, read_write(2)),
        (libc::SYS_mmap, ours(4)),
        (libc::SYS_close, ours(0)),
        (libc::SYS_open, read_write(1)),
        // Its flags are in memory.
        (libc::SYS_openat2, vec![verdict(ASK)]),
    ];
    let mut program = vec![load(ARCH), jump(libc::BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0), verdict(ALLOW), load(NUMBER)];
    for (number, block) in cases {
        program.push(jump(libc::BPF_JEQ, number as u32, 0, block.len()));
        program.extend(block);
    }
    program.push(verdict(ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::{ALLOW, ASK, AUDIT_ARCH_X86_64, program};
    use libc::{BPF_ALU, BPF_JEQ, BPF_JMP, BPF_LD, BPF_RET};

    /// Runs the program as the kernel's interpreter would.
    fn run(number: i64, arch: u32, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend((number as u32).to_le_bytes());
        data.extend(arch.to_le_bytes());
        data.extend([0; 8]);
        data.extend(args.iter().flat_map(|arg| arg.to_le_bytes()));
        let program = program();
        let (mut at, mut a) = (0, 0u32);
        loop {
            let step = program[at];
            at += 1;
            let code = u32::from(step.code);
            match code & 7 {
                BPF_LD => {
                    let k = step.k as usize;
                    a = u32::from_le_bytes(data[k..k + 4].try_into().unwrap());
                }
                BPF_ALU => a &= step.k,
                BPF_JMP => {
                    let holds = if code & 0xf0 == BPF_JEQ { a == step.k } else { a >= step.k };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
                BPF_RET => return step.k,
                other => panic!("class {other}"),
            }
        }
    }

    fn native(number: i64, args: [u64; 6]) -> u32 {
        run(number, AUDIT_ARCH_X86_64, args)
    }

    #[test]
    fn only_what_may_concern_the_device_is_asked_about() {
        let (rd, rw) = (libc::O_RDONLY as u64, libc::O_RDWR as u64);
        let cloexec = libc::O_CLOEXEC as u64;
        for (asked, number, args) in [
            (true, libc::SYS_ioctl, [3, 0xc020_6443, 0, 0, 0, 0]),
            (true, libc::SYS_ioctl, [3, 0xffff_ffff_c020_6443, 0, 0, 0, 0]),
            (false, libc::SYS_ioctl, [0, 0x5401, 0, 0, 0, 0]),
            (true, libc::SYS_openat, [0, 0, rw | cloexec, 0, 0, 0]),
            (false, libc::SYS_openat, [0, 0, rd | cloexec, 0, 0, 0]),
            (false, libc::SYS_openat, [0, 0, libc::O_WRONLY as u64, 0, 0, 0]),
            (true, libc::SYS_open, [0, rw, 0, 0, 0, 0]),
            (false, libc::SYS_open, [0, rd, rw, 0, 0, 0]),
            (true, libc::SYS_openat2, [0; 6]),
            (true, libc::SYS_mmap, [0, 4096, 3, 1, 880, 0]),
            (true, libc::SYS_mmap, [0, 4096, 3, 1, 1007, 0]),
            (false, libc::SYS_mmap, [0, 4096, 3, 1, 1008, 0]),
            (false, libc::SYS_mmap, [0, 4096, 3, 1, 879, 0]),
            (false, libc::SYS_mmap, [0, 4096, 3, 0x22, u64::MAX, 0]),
            (true, libc::SYS_close, [907, 0, 0, 0, 0, 0]),
            (false, libc::SYS_close, [7, 0, 0, 0, 0, 0]),
            (false, libc::SYS_sendmsg, [900, 900, 900, 900, 900, 900]),
            (false, libc::SYS_futex, [2; 6]),
        ] {
            let expected = if asked { ASK } else { ALLOW };
            assert_eq!(native(number, args), expected, "call {number} {args:x?}");
        }
        // The numbers mean other calls on other architectures.
        assert_eq!(run(libc::SYS_openat2, 0x4000_0003, [0; 6]), ALLOW);
    }
}
