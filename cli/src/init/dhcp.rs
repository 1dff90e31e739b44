//! Messages of DHCP (RFC 2131, RFC 2132), as much as a client needs that wants an address and a way out.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::cmdline::is_host;

/// Where servers and clients listen.
pub(super) const SERVER_PORT: u16 = 67;
pub(super) const CLIENT_PORT: u16 = 68;
/// The hardware address of an Ethernet interface.
pub(super) type Mac = [u8; 6];

/// What begins the options.
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Of the fixed part, with the cookie.
const HEAD: usize = 240;
/// The least that BOOTP relays pass on.
const LEAST: usize = 300;
/// Broadcast, please: without an address nothing else reaches us.
const BROADCAST: u16 = 0x8000;

/// Options.
const MASK: u8 = 1;
const ROUTER: u8 = 3;
const WANTED_ADDRESS: u8 = 50;
const LEASE: u8 = 51;
const OVERLOAD: u8 = 52;
const KIND: u8 = 53;
const SERVER: u8 = 54;
const PARAMETERS: u8 = 55;
const RENEWAL: u8 = 58;
const REBINDING: u8 = 59;
const CLIENT: u8 = 61;
const END: u8 = 255;

/// What a client says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Say {
    /// Who has an address?
    Discover,
    /// This offer, please.
    Request { address: Ipv4Addr, server: Ipv4Addr },
    /// This address, which it has, for longer.
    Renew { address: Ipv4Addr },
}

impl Say {
    /// The message's bytes.
    pub(super) fn bytes(self, transaction: u32, mac: Mac) -> Vec<u8> {
        let mut bytes = vec![0_u8; HEAD];
        // A request, over Ethernet, whose addresses have six bytes.
        bytes[..3].copy_from_slice(&[1, 1, 6]);
        bytes[4..8].copy_from_slice(&transaction.to_be_bytes());
        match self {
            Say::Renew { address } => bytes[12..16].copy_from_slice(&address.octets()),
            _ => bytes[10..12].copy_from_slice(&BROADCAST.to_be_bytes()),
        }
        bytes[28..34].copy_from_slice(&mac);
        bytes[236..240].copy_from_slice(&COOKIE);
        let mut option = |code: u8, value: &[u8]| {
            bytes.extend([code, value.len() as u8]);
            bytes.extend_from_slice(value);
        };
        option(KIND, &[if self == Say::Discover { 1 } else { 3 }]);
        option(CLIENT, &[&[1], &mac[..]].concat());
        if let Say::Request { address, server } = self {
            option(WANTED_ADDRESS, &address.octets());
            option(SERVER, &server.octets());
        }
        option(PARAMETERS, &[MASK, ROUTER, LEASE, RENEWAL, REBINDING]);
        bytes.push(END);
        bytes.resize(bytes.len().max(LEAST), 0);
        bytes
    }
}

/// What a server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Offer(Lease),
    Acknowledged(Lease),
    Refused,
}

/// An address for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ip: Ipv4Addr,
    pub(super) prefix: u8,
    pub(super) gateway: Option<Ipv4Addr>,
    pub(super) server: Ipv4Addr,
    /// For how long it is ours.
    pub(super) time: Duration,
    /// After which its server is asked for more.
    pub(super) renew: Duration,
    /// After which any server is.
    pub(super) rebind: Duration,
}

/// No lease is taken for shorter: a server that says less would be asked without end.
const SHORTEST: u32 = 60;

impl Reply {
    /// Reads an answer to `transaction` of `mac`; `None` for everything else, and for what makes no sense.
    pub(super) fn parse(bytes: &[u8], transaction: u32, mac: Mac) -> Option<Reply> {
        let head = bytes.get(..HEAD)?;
        let ours = head[..3] == [2, 1, 6]
            && head[4..8] == transaction.to_be_bytes()
            && head[28..34] == mac
            && head[236..240] == COOKIE;
        if !ours {
            return None;
        }
        let mut options = Options::default();
        options.read(&bytes[HEAD..]);
        // The fields of BOOTP's file and server name may hold options, too.
        let overload = options.overload;
        if overload & 1 != 0 {
            options.read(&head[108..236]);
        }
        if overload & 2 != 0 {
            options.read(&head[44..108]);
        }
        let kind = options.kind?;
        if kind == 6 {
            return Some(Reply::Refused);
        }
        let lease = options.lease(head)?;
        match kind {
            2 => Some(Reply::Offer(lease)),
            5 => Some(Reply::Acknowledged(lease)),
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct Options {
    overload: u8,
    kind: Option<u8>,
    mask: Option<u32>,
    router: Option<u32>,
    server: Option<u32>,
    time: Option<u32>,
    renew: Option<u32>,
    rebind: Option<u32>,
}

impl Options {
    /// Reads options up to their end, or to where they are cut off. The first of a sort counts.
    fn read(&mut self, mut bytes: &[u8]) {
        while let [code, rest @ ..] = bytes {
            match (*code, rest) {
                (0, _) => bytes = rest,
                (END, _) | (_, []) => return,
                (code, [length, rest @ ..]) => {
                    let Some((value, behind)) = rest.split_at_checked(usize::from(*length)) else { return };
                    self.take(code, value);
                    bytes = behind;
                }
            }
        }
    }

    fn take(&mut self, code: u8, value: &[u8]) {
        let word = value.first_chunk().map(|word| u32::from_be_bytes(*word));
        let slot = match code {
            OVERLOAD => return self.overload = value.first().copied().unwrap_or(0),
            KIND => return self.kind = self.kind.or(value.first().copied()),
            MASK => &mut self.mask,
            ROUTER => &mut self.router,
            SERVER => &mut self.server,
            LEASE => &mut self.time,
            RENEWAL => &mut self.renew,
            REBINDING => &mut self.rebind,
            _ => return,
        };
        *slot = slot.or(word);
    }

    fn lease(&self, head: &[u8]) -> Option<Lease> {
        let ip = Some(Ipv4Addr::from(*head[16..].first_chunk::<4>()?)).filter(is_host)?;
        let mask = self.mask.unwrap_or(0xffff_ff00);
        // Ones, then zeros.
        let prefix = mask.leading_ones();
        if prefix == 0 || mask.count_ones() != prefix {
            return None;
        }
        let time = self.time?.max(SHORTEST);
        let part = |said: Option<u32>, share: u32, least: u32| {
            said.filter(|said| (least..time).contains(said)).unwrap_or((time / 8 * share).max(least))
        };
        let renew = part(self.renew, 4, SHORTEST / 2);
        let rebind = part(self.rebind, 7, renew);
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Some(Lease {
            ip,
            prefix: prefix as u8,
            gateway: self.router.map(Ipv4Addr::from).filter(is_host),
            server: self.server.map(Ipv4Addr::from).filter(is_host)?,
            time: seconds(time),
            renew: seconds(renew),
            rebind: seconds(rebind),
        })
    }
}

#[cfg(test)]
mod tests;
