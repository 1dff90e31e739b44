//! What the kernel's command line says to us, in words that no module of the kernel's listens to.
//!
//! ```text
//! qwen35.ip=192.0.2.7/24,192.0.2.1      address, length of the network's part, and the way out; or dhcp
//! qwen35.bundle=/dev/nvme0n1p2:/bundle  a partition and the bundle's directory on it
//! qwen35.hostname=kiosk
//! qwen35.control=/dev/ttyS1             while the server runs, lines of init's script come from there: for tests
//! amdxdna.force_iova=1                  a parameter of any module that we load
//! -- --max-ctx 4096                     behind a lone `--`: arguments of the server
//! ```

use std::net::Ipv4Addr;

/// An address that somebody has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) ip: Ipv4Addr,
    /// Bits of the network's part.
    pub(super) prefix: u8,
    pub(super) gateway: Option<Ipv4Addr>,
}

/// Where a bundle is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The partition's node.
    pub(super) node: String,
    /// The directory on it.
    pub(super) path: String,
}

/// Everything that was said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Parameters {
    /// `None` asks the network.
    pub(super) address: Option<Address>,
    pub(super) bundle: Option<Place>,
    pub(super) hostname: Option<String>,
    /// A serial port.
    pub(super) control: Option<String>,
    /// Of modules: `amdxdna.force_iova`, `1`.
    modules: Vec<(String, String)>,
    /// Of the server.
    pub(super) arguments: Vec<String>,
}

impl Parameters {
    /// Reads a command line; also what was meant for us and cannot be read, which is passed over.
    pub(super) fn parse(line: &str) -> (Parameters, Vec<String>) {
        let (mut parameters, mut complaints) = (Parameters::default(), Vec::new());
        let mut words = words(line).into_iter();
        for word in words.by_ref().take_while(|word| word != "--") {
            let (name, value) = word.split_once('=').unwrap_or((&word, ""));
            let Some((module, parameter)) = name.split_once('.') else { continue };
            let taken = match (module, parameter) {
                ("qwen35", "ip") if value == "dhcp" => true,
                ("qwen35", "ip") => set(&mut parameters.address, Address::parse(value)),
                ("qwen35", "bundle") => set(&mut parameters.bundle, Place::parse(value)),
                ("qwen35", "hostname") => set(&mut parameters.hostname, hostname(value)),
                ("qwen35", "control") => {
                    let port = Some(value.to_owned()).filter(|port| port.starts_with("/dev/tty"));
                    set(&mut parameters.control, port)
                }
                ("qwen35", _) => false,
                _ => {
                    parameters.modules.push((plain(module), word[module.len() + 1..].to_owned()));
                    true
                }
            };
            if !taken {
                complaints.push(format!("{word:?} on the kernel's command line means nothing here"));
            }
        }
        parameters.arguments = words.collect();
        (parameters, complaints)
    }

    /// The parameters of a module, as it takes them.
    pub(super) fn of_module(&self, name: &str) -> String {
        let name = plain(name);
        let said: Vec<&str> = self.modules.iter().filter(|(of, _)| *of == name).map(|(_, text)| &text[..]).collect();
        said.join(" ")
    }
}

fn set<T>(to: &mut Option<T>, value: Option<T>) -> bool {
    let some = value.is_some();
    if some {
        *to = value;
    }
    some
}

/// The kernel takes a dash in a module's name for an underscore.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

/// Words as the kernel cuts them: white space within double quotes is a word's own.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '"' => (quoted, begun) = (!quoted, true),
            c if c.is_whitespace() && !quoted => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                begun = true;
                word.push(c);
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

impl Address {
    /// Reads `192.0.2.7/24` or `192.0.2.7/24,192.0.2.1`.
    fn parse(text: &str) -> Option<Address> {
        let (network, gateway) = text.split_once(',').map_or((text, None), |(network, way)| (network, Some(way)));
        let (ip, prefix) = network.split_once('/')?;
        let gateway = gateway.map(|way| way.parse().ok().filter(is_host)).map_or(Some(None), |way| way.map(Some))?;
        let (ip, prefix) = (ip.parse().ok().filter(is_host)?, prefix.parse().ok()?);
        (1..=32).contains(&prefix).then_some(Address { ip, prefix, gateway })
    }
}

/// Whether one machine can have this address.
pub(super) fn is_host(ip: &Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast() || ip.is_loopback())
}

impl Place {
    /// Reads `/dev/nvme0n1p2:/bundle`.
    fn parse(text: &str) -> Option<Place> {
        let (node, path) = text.split_once(':')?;
        let fine = node.starts_with("/dev/") && path.starts_with('/') && !path.split('/').any(|part| part == "..");
        fine.then(|| Place { node: node.to_owned(), path: path.to_owned() })
    }
}

fn hostname(text: &str) -> Option<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    (!text.is_empty() && text.len() <= 64 && text.chars().all(fine)).then(|| text.to_owned())
}

/// The server's arguments: those of the script, but for flags that the command line has, too.
pub(super) fn merge(script: &[String], more: &[String]) -> Vec<String> {
    let (mut merged, mut skips) = (Vec::new(), false);
    for word in script {
        if word.starts_with("--") {
            skips = more.iter().any(|other| other.split('=').next() == Some(word));
        }
        if !skips {
            merged.push(word.clone());
        }
    }
    merged.extend_from_slice(more);
    merged
}

/// The port in a server's `--listen`.
pub(super) fn port(arguments: &[String]) -> Option<u16> {
    let mut words = arguments.iter();
    let at = words.find_map(|word| word.strip_prefix("--listen"));
    let value = at.and_then(|rest| rest.strip_prefix('=')).or(words.next().map(String::as_str))?;
    value.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_whole_line_is_read() {
        let line = "BOOT_IMAGE=/vmlinuz console=ttyS0 quiet qwen35.ip=10.0.2.15/24,10.0.2.2 amdxdna.force_iova=1 \
                    usb-storage.quirks=1:2:u usb_storage.delay_use=0 qwen35.bundle=/dev/nvme0n1p2:/a/b \
                    qwen35.hostname=kiosk-3 -- --max-ctx 4096 --name \"two words\"\n";
        let (read, complaints) = Parameters::parse(line);
        assert_eq!(complaints, Vec::<String>::new());
        let (ip, gateway) = (Ipv4Addr::new(10, 0, 2, 15), Some(Ipv4Addr::new(10, 0, 2, 2)));
        assert_eq!(read.address, Some(Address { ip, prefix: 24, gateway }));
        assert_eq!(read.bundle, Some(Place { node: "/dev/nvme0n1p2".into(), path: "/a/b".into() }));
        assert_eq!(read.hostname.as_deref(), Some("kiosk-3"));
        assert_eq!(read.of_module("amdxdna"), "force_iova=1");
        assert_eq!(read.of_module("usb-storage"), "quirks=1:2:u delay_use=0");
        assert_eq!(read.of_module("nvme"), "");
        assert_eq!(read.arguments, owned(&["--max-ctx", "4096", "--name", "two words"]));
    }

    #[test]
    fn what_cannot_be_read_is_told_and_costs_nothing_else() {
        for bad in [
            "ip=",
            "ip=10.0.2.15",
            "ip=10.0.2.15/0",
            "ip=10.0.2.15/33",
            "ip=10.0.2.15/24,",
            "ip=10.0.2.15/24,x",
            "ip=0.0.0.0/8",
            "ip=255.255.255.255/8",
            "ip=224.0.0.1/8",
            "ip=::1/64",
            "bundle=nvme:/b",
            "bundle=/dev/a",
            "bundle=/dev/a:b",
            "bundle=/dev/a:/../etc",
            "hostname=",
            "hostname=a_b",
            "control=/etc/x",
            "what=1",
        ] {
            let (read, complaints) = Parameters::parse(&format!("qwen35.{bad} qwen35.hostname=h"));
            assert_eq!(complaints.len(), 1, "{bad}");
            assert_eq!(read, Parameters { hostname: Some("h".into()), ..Parameters::default() }, "{bad}");
        }
        assert_eq!(
            Parameters::parse("qwen35.ip=dhcp \" = . =.= -- --"),
            (Parameters { modules: Vec::new(), ..Parameters::default() }, Vec::new())
        );
    }

    #[test]
    fn a_flag_of_the_command_line_replaces_the_scripts() {
        let script = owned(&["--listen", "0.0.0.0:8080", "--anyone", "--device", "npu"]);
        assert_eq!(merge(&script, &[]), script);
        let more = owned(&["--listen=0.0.0.0:80", "--device", "virtual"]);
        assert_eq!([port(&script), port(&more), port(&more[1..])], [Some(8080), Some(80), None]);
        assert_eq!(merge(&script, &more), owned(&["--anyone", "--listen=0.0.0.0:80", "--device", "virtual"]));
    }
}
