//! The DRM core's part: numbers, sizes, copy-back, version, capabilities.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, drm, request};
use bytemuck::Zeroable;

use super::Case;
use super::harness::{Node, addr_of};

pub const CASES: &[Case] = &[
    ("unknown numbers give EINVAL", unknown_numbers),
    ("a short argument is extended with zeroes, a long one cut", argument_sizes),
    ("the argument is written back on failure", copy_back),
    ("version: whole lengths, strings cut to the room", version),
    ("capabilities", capabilities),
    ("WAIT_CMD has no handler", wait_cmd),
    ("SET_STATE is for root", set_state),
    ("client names", client_names),
];

fn unknown_numbers(node: &Node) {
    let client = node.open();
    for nr in [0x4bu32, 0x9f, 0x3f, 0xb0] {
        let request = 0xC008_6400 | nr;
        assert_eq!(client.call(request, &mut [0u32; 2]), Err(Errno::INVAL), "{nr:#x}");
    }
}

fn argument_sizes(node: &Node) {
    let client = node.open();
    let with_size = |word: u32, size: u32| word & !(0x3fff << 16) | size << 16;
    // CREATE_BO without its last eight bytes: the type reads as 0, which is none.
    let mut short = [0u64, 0, 4096];
    assert_eq!(client.call(with_size(request::CREATE_BO, 24), &mut short), Err(Errno::INVAL));
    // And with eight more, which nobody reads.
    let mut long = [0u64, 0, 4096, 1, u64::MAX];
    client.call(with_size(request::CREATE_BO, 40), &mut long).unwrap();
    assert_eq!((long[3] >> 32, long[4]), (1, u64::MAX), "handle 1 and untouched bytes behind it");
}

fn copy_back(node: &Node) {
    let client = node.open();
    let mut cap = drm::GetCap { capability: 0x7777, value: 99 };
    assert_eq!(client.call(request::GET_CAP, &mut cap), Err(Errno::OPNOTSUPP));
    assert_eq!(cap.value, 0, "the handler had cleared it");
}

fn version(node: &Node) {
    let client = node.open();
    let mut name = [0u8; 6];
    let mut version = drm::Version { name_len: 6, name: name.as_mut_ptr().addr() as u64, ..Zeroable::zeroed() };
    client.call(request::VERSION, &mut version).unwrap();
    assert_eq!((version.version_major, &name), (0, b"amdxdn"));
    assert_eq!(version.name_len, "amdxdna_accel_driver".len() as u64);
    assert_eq!(version.desc_len, "AMD XDNA DRM implementation".len() as u64);
    assert!(version.version_minor >= 10);
}

fn capabilities(node: &Node) {
    let client = node.open();
    for (capability, value) in [(5, 3), (0x13, 1), (0x14, 1)] {
        let mut cap = drm::GetCap { capability, value: 0 };
        client.call(request::GET_CAP, &mut cap).unwrap();
        assert_eq!(cap.value, value, "{capability:#x}");
    }
}

fn wait_cmd(node: &Node) {
    let client = node.open();
    let mut wait = abi::WaitCmd::zeroed();
    assert_eq!(client.call(request::WAIT_CMD, &mut wait), Err(Errno::OPNOTSUPP));
}

fn set_state(node: &Node) {
    let client = node.open();
    let mode = 3u64;
    let mut state = abi::SetState { param: 0, buffer_size: 8, buffer: addr_of(&mode) };
    assert_eq!(client.call(request::SET_STATE, &mut state), Err(Errno::ACCESS));
}

fn client_names(node: &Node) {
    let client = node.open();
    let set = |name: &[u8]| {
        let mut a = drm::SetClientName { name_len: name.len() as u64, name: name.as_ptr().addr() as u64 };
        client.call(request::SET_CLIENT_NAME, &mut a)
    };
    assert_eq!(set(b"qwen"), Ok(()));
    assert_eq!(set(b"two words\n"), Err(Errno::INVAL));
    assert_eq!(set(&[b'x'; 65]), Err(Errno::INVAL));
}
