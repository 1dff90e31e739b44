//! Interfaces, addresses and routes through rtnetlink(7), in the few messages that we need.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, sockopt};

use super::cmdline::Address;

/// Message types of `linux/rtnetlink.h`.
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
/// A request that wants an answer; one that makes; one that replaces.
const REQUEST: u16 = 1 | 4;
const CREATE: u16 = 0x400;
const REPLACE: u16 = 0x100;
/// The type of an answer.
const ANSWER: u16 = 2;
const IPV4: u8 = 2;
const UP: u32 = 1;

/// A request: what goes behind the head, which is written last.
#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Message {
        // Length, type, flags, number, sender: the length comes when it is known.
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        bytes.extend_from_slice(body);
        Message { bytes }
    }

    fn with(mut self, kind: u16, value: [u8; 4]) -> Message {
        self.bytes.extend_from_slice(&8_u16.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&value);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes
    }
}

/// Turns an interface on.
fn up(interface: u32) -> Vec<u8> {
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body[8..12].copy_from_slice(&UP.to_ne_bytes());
    // Which flags the flags above are to change.
    body[12..16].copy_from_slice(&UP.to_ne_bytes());
    Message::new(NEW_LINK, REQUEST, &body).finish()
}

fn address(kind: u16, flags: u16, interface: u32, to: Address) -> Vec<u8> {
    let index = interface.to_ne_bytes();
    let body = [IPV4, to.prefix, 0, 0, index[0], index[1], index[2], index[3]];
    let message = Message::new(kind, flags, &body).with(2, to.ip.octets());
    let host = u32::MAX.checked_shr(to.prefix.into()).unwrap_or(0);
    let message = match (kind, to.prefix) {
        (NEW_ADDRESS, ..=30) => message.with(4, Ipv4Addr::from(to.ip.to_bits() | host).octets()),
        _ => message,
    };
    message.with(1, to.ip.octets()).finish()
}

/// What no route leads to otherwise goes there.
fn default_route(interface: u32, gateway: Ipv4Addr) -> Vec<u8> {
    // Family; lengths; main table; made at boot, for everywhere, to one machine.
    let body = [IPV4, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    let message = Message::new(NEW_ROUTE, REQUEST | CREATE | REPLACE, &body);
    message.with(5, gateway.octets()).with(4, interface.to_ne_bytes()).finish()
}

/// The kernel's ear for such messages.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    pub(super) fn open() -> io::Result<Netlink> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(std::time::Duration::from_secs(5)))?;
        Ok(Netlink(socket))
    }

    fn ask(&self, message: &[u8]) -> io::Result<()> {
        send(&self.0, message, SendFlags::empty())?;
        let mut answer = [0_u8; 1024];
        let (length, _) = recv(&self.0, &mut answer[..], RecvFlags::empty())?;
        result(answer.get(..length).unwrap_or_default())
    }

    /// Turns an interface on.
    pub(super) fn up(&self, interface: u32) -> io::Result<()> {
        self.ask(&up(interface))
    }

    /// Gives an interface an address, and the way out where there is one.
    pub(super) fn configure(&self, interface: u32, to: Address) -> io::Result<()> {
        self.ask(&address(NEW_ADDRESS, REQUEST | CREATE | REPLACE, interface, to))?;
        to.gateway.map_or(Ok(()), |gateway| self.ask(&default_route(interface, gateway)))
    }

    /// Takes an address away, and the kernel the routes that lead through it.
    pub(super) fn remove(&self, interface: u32, from: Address) -> io::Result<()> {
        self.ask(&address(DELETE_ADDRESS, REQUEST, interface, from))
    }
}

/// What an answer says: nothing wrong, or an error's negative number.
fn result(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|kind| kind.first_chunk()).map(|kind| u16::from_ne_bytes(*kind));
    let code = answer.get(16..20).and_then(|code| code.first_chunk()).map(|code| i32::from_ne_bytes(*code));
    match (kind, code) {
        (Some(ANSWER), Some(0)) => Ok(()),
        (Some(ANSWER), Some(code)) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        _ => Err(io::Error::other("the kernel's answer is none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    }

    /// What iproute2 sends for `link set lo up`, `addr add`, `route add default` and `addr del`. Its flags say CREATE and
    /// EXCL where ours say CREATE and REPLACE, and it counts its messages.
    #[test]
    fn messages_are_those_of_iproute2() {
        let (ip, way) = (Ipv4Addr::new(10, 0, 2, 15), Ipv4Addr::new(10, 0, 2, 2));
        let here = Address { ip, prefix: 24, gateway: Some(way) };
        let cases = [
            (up(1), "20 00 00 00 10 00 05 00 2f ee 0e 6b 00 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 01 00 00 00"),
            (
                address(NEW_ADDRESS, REQUEST | CREATE | REPLACE, 1, here),
                "30 00 00 00 14 00 05 06 2f ee 0e 6b 00 00 00 00 02 18 00 00 01 00 00 00 08 00 02 00 0a 00 02 0f \
                 08 00 04 00 0a 00 02 ff 08 00 01 00 0a 00 02 0f",
            ),
            (
                default_route(1, way),
                "2c 00 00 00 18 00 05 06 2f ee 0e 6b 00 00 00 00 02 00 00 00 fe 03 00 01 00 00 00 00 08 00 05 00 \
                 0a 00 02 02 08 00 04 00 01 00 00 00",
            ),
            (
                address(DELETE_ADDRESS, REQUEST, 1, here),
                "28 00 00 00 15 00 05 00 2f ee 0e 6b 00 00 00 00 02 18 00 00 01 00 00 00 08 00 02 00 0a 00 02 0f \
                 08 00 01 00 0a 00 02 0f",
            ),
        ];
        for (ours, theirs) in cases {
            let mut theirs = hex(theirs);
            if theirs[7] == 6 {
                theirs[7] = 5;
            }
            theirs[8..12].copy_from_slice(&ours[8..12]);
            assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn an_answer_is_an_error_or_none() {
        let answer =
            |kind: u16, code: i32| [&[36, 0, 0, 0], &kind.to_ne_bytes()[..], &[0; 10], &code.to_ne_bytes()].concat();
        assert!(result(&answer(ANSWER, 0)).is_ok());
        assert_eq!(result(&answer(ANSWER, -17)).unwrap_err().raw_os_error(), Some(17));
        assert!(result(&answer(ANSWER, i32::MIN)).is_err() && result(&answer(3, 0)).is_err());
        for length in 0..20 {
            assert!(result(&answer(ANSWER, 0)[..length]).is_err());
        }
    }

    /// Without rights, the kernel's own words: it does answer these messages.
    #[test]
    fn the_kernel_understands_them() {
        // Some containers have no netlink.
        let Ok(netlink) = Netlink::open() else { return };
        if let Err(e) = netlink.up(1) {
            assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{e}");
        }
    }
}
