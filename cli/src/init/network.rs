//! The machine's network: loopback, and the first Ethernet interface with a link, at an address that somebody chose or
//! that DHCP gives. A thread of its own looks after it for as long as the machine runs.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::Console;
use super::cmdline::Address;
use super::dhcp::{CLIENT_PORT, Lease, Mac, Reply, SERVER_PORT, Say};
use super::kmod::Modules;
use super::netlink::Netlink;

/// Between two looks at the interfaces.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks at a link that is in use.
const WATCH: Duration = Duration::from_secs(2);
/// How long nothing may come up before that is told.
const PATIENCE: Duration = Duration::from_secs(15);
/// Waits for an answer grow from the first to the second.
const ANSWER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(32));
/// Of an unconnected interface's index.
const LOOPBACK: u32 = 1;

/// What the thread has to do with.
#[derive(Debug)]
pub(super) struct Network {
    /// `None` asks the network.
    pub(super) address: Option<Address>,
    /// Where the server listens, for people.
    pub(super) port: u16,
    /// Drivers of interfaces that come late.
    pub(super) modules: Arc<Mutex<Modules>>,
}

/// An Ethernet interface.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Interface {
    name: String,
    index: u32,
    mac: Mac,
}

impl Network {
    /// Turns loopback on and starts the thread.
    pub(super) fn start(self) -> Result<(), String> {
        let netlink = Netlink::open().map_err(|e| format!("network: a netlink socket: {e}"))?;
        netlink.up(LOOPBACK).map_err(|e| format!("network: loopback: {e}"))?;
        let work = move || {
            let mut console = Console::open();
            loop {
                if let Err(why) = self.connect(&netlink, &mut console) {
                    console.say(&format!("network: {why}"));
                }
                sleep(WATCH);
            }
        };
        std::thread::Builder::new().name("network".into()).spawn(work).map(|_| ()).map_err(|e| format!("network: {e}"))
    }

    /// Gets an interface an address, and returns when it is to be had anew.
    fn connect(&self, netlink: &Netlink, console: &mut Console) -> Result<(), String> {
        let interface = self.linked(netlink, console);
        let name = &interface.name;
        let configure = |to| netlink.configure(interface.index, to).map_err(|e| format!("{name}: {}: {e}", to.ip));
        if let Some(address) = self.address {
            configure(address)?;
            self.tell(console, &interface, address, "as the kernel's command line says");
            // An address that was chosen stays, link or not.
            loop {
                sleep(Duration::from_secs(3600));
            }
        }
        let client = Client::open(&interface).map_err(|e| format!("{name}: a socket for DHCP: {e}"))?;
        let Some(lease) = client.obtain(&interface) else {
            return Err(format!("{name}: no DHCP server answers; asking on"));
        };
        let address = address(&lease);
        configure(address)?;
        self.tell(console, &interface, address, &format!("by DHCP from {}", lease.server));
        let why = client.hold(lease, &interface, &mut |renewed| {
            super::network::address(renewed) == address && configure(address).is_ok()
        });
        let _ = netlink.remove(interface.index, address);
        Err(format!("{name}: {why}; asking for an address anew"))
    }

    fn tell(&self, console: &mut Console, interface: &Interface, at: Address, how: &str) {
        let Address { ip, prefix, gateway } = at;
        let way = gateway.map_or_else(|| "no way out".to_owned(), |way| format!("out through {way}"));
        console.say(&format!("network: {} has {ip}/{prefix} {how}, {way}", interface.name));
        console.say(&format!("the server is at http://{ip}:{}", self.port));
    }

    /// The first interface with a link, waiting until there is one.
    fn linked(&self, netlink: &Netlink, console: &mut Console) -> Interface {
        let (begun, mut told) = (Instant::now(), false);
        let mut looked: Option<Instant> = None;
        loop {
            // Looking for devices that come late is work, and the server is loading.
            let due = looked.is_none_or(|looked| looked.elapsed() > WATCH);
            if due {
                let trouble = self.modules.lock().unwrap_or_else(PoisonError::into_inner).scan(&[]);
                trouble.iter().for_each(|line| console.say(line));
                looked = Some(Instant::now());
            }
            let interfaces = interfaces(Path::new("/sys/class/net"));
            for interface in interfaces.iter().filter(|_| due) {
                // One that is off has no link to speak of.
                let _ = netlink.up(interface.index);
            }
            if let Some(first) = interfaces.iter().find(|interface| interface.has_link()) {
                return first.clone();
            }
            if begun.elapsed() > PATIENCE && !std::mem::replace(&mut told, true) {
                let names: Vec<&str> = interfaces.iter().map(|interface| &*interface.name).collect();
                console.say(&match names.is_empty() {
                    true => "network: no Ethernet interface that a driver of this image knows; waiting".to_owned(),
                    false => format!("network: no link on {}; waiting", names.join(", ")),
                });
            }
            sleep(LOOK);
        }
    }
}

fn address(lease: &Lease) -> Address {
    Address { ip: lease.ip, prefix: lease.prefix, gateway: lease.gateway }
}

/// The Ethernet interfaces that are a device's, by index.
fn interfaces(directory: &Path) -> Vec<Interface> {
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<Interface> = paths.filter_map(interface).collect();
    found.sort_by_key(|interface| interface.index);
    found
}

fn interface(path: PathBuf) -> Option<Interface> {
    let word = |name: &str| fs::read_to_string(path.join(name)).ok().map(|text| text.trim().to_owned());
    // ARPHRD_ETHER; bridges and their like have no device.
    if word("type")? != "1" || !path.join("device").exists() {
        return None;
    }
    let mut mac = Mac::default();
    let text = word("address")?;
    let mut bytes = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(bytes.next()?, 16).ok()?;
    }
    Some(Interface { name: path.file_name()?.to_str()?.to_owned(), index: word("ifindex")?.parse().ok()?, mac })
}

impl Interface {
    /// Whether it can be used. The carrier is there a moment sooner, and what is sent then is lost.
    fn has_link(&self) -> bool {
        let state = fs::read_to_string(format!("/sys/class/net/{}/operstate", self.name));
        state.is_ok_and(|state| matches!(state.trim(), "up" | "unknown")) && self.has_carrier()
    }

    fn has_carrier(&self) -> bool {
        fs::read_to_string(format!("/sys/class/net/{}/carrier", self.name)).is_ok_and(|text| text.trim() == "1")
    }
}

/// A client of DHCP on one interface.
#[derive(Debug)]
struct Client {
    socket: UdpSocket,
    transaction: u32,
    mac: Mac,
}

impl Client {
    fn open(interface: &Interface) -> io::Result<Client> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.set_broadcast(true)?;
        // Without an address there is no route that would choose the interface.
        socket.bind_device(Some(interface.name.as_bytes()))?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, CLIENT_PORT)).into())?;
        let mut random = [0; 4];
        // Any number does: it only tells our answers from those to others.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        Ok(Client { socket: socket.into(), transaction: u32::from_ne_bytes(random), mac: interface.mac })
    }

    /// Says something and waits for what `wanted` takes of the answers.
    fn ask<T>(&self, say: Say, to: Ipv4Addr, wait: Duration, wanted: impl Fn(Reply) -> Option<T>) -> Option<T> {
        let until = Instant::now() + wait;
        let message = say.bytes(self.transaction, self.mac);
        let sent = self.socket.send_to(&message, SocketAddrV4::new(to, SERVER_PORT));
        let mut bytes = [0; 2048];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if sent.is_err() || left.is_zero() || self.socket.set_read_timeout(Some(left)).is_err() {
                sleep(left);
                return None;
            }
            let Ok((length, _)) = self.socket.recv_from(&mut bytes) else { continue };
            let reply = Reply::parse(bytes.get(..length).unwrap_or_default(), self.transaction, self.mac);
            if let Some(found) = reply.and_then(&wanted) {
                return Some(found);
            }
        }
    }

    /// Asks until it has a lease; nothing where nobody answers or the link goes.
    fn obtain(&self, interface: &Interface) -> Option<Lease> {
        let mut wait = ANSWER.0;
        while wait <= ANSWER.1 && interface.has_link() {
            let offered = |reply| if let Reply::Offer(lease) = reply { Some(lease) } else { None };
            let offer = self.ask(Say::Discover, Ipv4Addr::BROADCAST, wait, offered);
            if let Some(offer) = offer {
                let request = Say::Request { address: offer.ip, server: offer.server };
                if let Some(Some(lease)) = self.ask(request, Ipv4Addr::BROADCAST, wait, outcome) {
                    return Some(lease);
                }
            }
            wait *= 2;
        }
        None
    }

    /// Keeps a lease for as long as servers and the link bear it; then says why not. `renewed` may refuse what a server
    /// has made of the lease.
    fn hold(&self, mut lease: Lease, interface: &Interface, renewed: &mut dyn FnMut(&Lease) -> bool) -> String {
        let mut since = Instant::now();
        let mut next = lease.renew;
        let mut linked = true;
        loop {
            let link = interface.has_link();
            if link && !linked {
                // It may be another network.
                return "the link was gone and is back".into();
            }
            linked = link;
            let age = since.elapsed();
            if age >= lease.time {
                return format!("the lease of {} has ended", lease.ip);
            }
            if age < next {
                sleep(WATCH);
                continue;
            }
            // Its own server first, then any.
            let to = if age < lease.rebind { lease.server } else { Ipv4Addr::BROADCAST };
            let asked = Instant::now();
            match self.ask(Say::Renew { address: lease.ip }, to, Duration::from_secs(5), outcome) {
                Some(None) => return format!("{} may not be kept", lease.ip),
                Some(Some(more)) => {
                    if !renewed(&more) {
                        return format!("{} has become {}", lease.ip, more.ip);
                    }
                    (lease, since, next) = (more, asked, more.renew);
                }
                // Half of what is left, and not too often.
                None => next = age + ((lease.time - age) / 2).max(Duration::from_secs(30)),
            }
        }
    }
}

/// A request's outcome: a lease, or a refusal.
fn outcome(reply: Reply) -> Option<Option<Lease>> {
    match reply {
        Reply::Acknowledged(lease) => Some(Some(lease)),
        Reply::Refused => Some(None),
        Reply::Offer(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_devices_count_and_others_do_not() {
        let root = std::env::temp_dir().join(format!("qwen35-net-{}", std::process::id()));
        let make = |name: &str, kind: &str, index: &str, mac: &str, device: bool| {
            let path = root.join(name);
            fs::create_dir_all(&path).unwrap();
            for (file, text) in [("type", kind), ("ifindex", index), ("address", mac)] {
                fs::write(path.join(file), format!("{text}\n")).unwrap();
            }
            if device {
                fs::create_dir_all(path.join("device")).unwrap();
            }
        };
        make("lo", "772", "1", "00:00:00:00:00:00", false);
        make("br0", "1", "2", "02:00:00:00:00:01", false);
        make("eth1", "1", "9", "52:54:00:12:34:57", true);
        make("eth0", "1", "3", "52:54:00:12:34:56", true);
        make("odd", "1", "4", "52:54:00", true);
        make("ib0", "32", "5", "52:54:00:12:34:56", true);
        let found = interfaces(&root);
        fs::remove_dir_all(&root).unwrap();
        let brief: Vec<_> = found.iter().map(|one| (&*one.name, one.index, one.mac)).collect();
        let mac = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
        assert_eq!(brief, [("eth0", 3, mac), ("eth1", 9, [0x52, 0x54, 0, 0x12, 0x34, 0x57])]);
        assert_eq!(interfaces(Path::new("/nowhere")), []);
    }
}
