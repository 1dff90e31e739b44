//! What a kernel is told: the marker in a reference kernel's PDI, and the runtime parameters in its cores.

use sha2::{Digest, Sha256};

use super::{Epilogue, Format, Order};

/// The kernel behind a compute unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// A reference kernel: this model knows what its cores do.
    Reference(Kind),
    /// A kernel that was compiled for the cores; known by the hash of its PDI only.
    Opaque([u8; 32]),
}

/// The reference kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Matrix times matrix.
    Gemm,
    /// Matrix times vector.
    Gemv,
}

/// Version of marker and parameters that this model reads.
pub(crate) const VERSION: u32 = 1;
/// What the payload of the naming NOP starts with.
const MARKER: &[u8; 16] = b"qwen35-reference";
/// Where the CDO of a PDI with one partition starts.
const CDO: usize = 0x150;

impl Kernel {
    /// Looks at a PDI.
    pub(super) fn of_pdi(pdi: &[u8]) -> Result<Self, String> {
        match marker(pdi) {
            Some([kind @ 1..=2, VERSION]) => Ok(Self::Reference(if kind == 1 { Kind::Gemm } else { Kind::Gemv })),
            Some([kind, version]) => {
                Err(format!("reference kernel {kind} of version {version}; this model knows 1 and 2 of {VERSION}"))
            }
            None if pdi.is_empty() => Err("the PDI is empty".to_owned()),
            None => Ok(Self::Opaque(Sha256::digest(pdi).into())),
        }
    }
}

/// Kind and version from the marker: a CDO command NOP with a payload that begins with [`MARKER`]. Only plainly encoded
/// images are looked at; production images have another encoding and no marker.
fn marker(pdi: &[u8]) -> Option<[u32; 2]> {
    let word = |at: usize| Some(u32::from_le_bytes(pdi.get(at..at + 4)?.try_into().ok()?));
    let plain = word(0)? == 0xDD && word(0x140)? == 0 && word(CDO + 4)? == u32::from_le_bytes(*b"CDO\0");
    let length = (word(CDO + 12)? as usize).min(pdi.len() / 4);
    let (mut at, end) = (CDO + 20, CDO + 20 + 4 * length);
    while plain && at < end {
        let command = word(at)?;
        let mut payload = (command >> 16 & 0xFF) as usize;
        at += 4;
        if payload == 255 {
            payload = word(at)? as usize;
            at += 4;
        }
        let bytes = pdi.get(at..at.checked_add(payload.checked_mul(4)?)?)?;
        if command & 0xFFFF == 0x111 && bytes.len() == 24 && bytes.starts_with(MARKER) {
            return Some([word(at + 16)?, word(at + 20)?]);
        }
        at += 4 * payload;
    }
    None
}

/// Bytes of an activation, result or bias value.
pub(super) const fn element_bytes(format: Format) -> usize {
    match format {
        Format::Bfp16 | Format::Bfp6s => 2,
        Format::F32 => 4,
    }
}

/// The computation that a dispatch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Matrix times matrix.
    Gemm(GemmJob),
    /// Matrix times vector.
    Gemv(GemvJob),
}

/// C = epilogue(A B + bias), `rows` x `k` times `k` x `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GemmJob {
    /// Rows of A, a multiple of 256.
    pub(super) rows: usize,
    /// Rows of B, a multiple of 512.
    pub(super) k: usize,
    /// Columns of B, a multiple of 64.
    pub(super) n: usize,
    pub(super) epilogue: Epilogue,
    /// Whether a bias chunk stands before each 64 columns of B.
    pub(super) bias: bool,
    /// Whether a column block of B comes once for each 256 rows, or once.
    pub(super) streamed: bool,
    pub(super) format: Format,
}

/// y = W x + bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GemvJob {
    /// Results of each column of the array.
    pub(super) shares: [usize; super::shim::COLUMNS],
    /// Length of x, a multiple of 512.
    pub(super) k: usize,
    pub(super) order: Order,
    /// Whether a bias chunk stands before each 64 results' weights.
    pub(super) bias: bool,
    pub(super) format: Format,
}

/// Words of the runtime parameters.
pub(crate) const PARAMETERS: usize = 8;
/// Where they start in a core's data memory.
pub(crate) const PARAMETER_ADDRESS: u32 = 0x1000;
/// The value register of the lock that releases a core.
pub(crate) const BARRIER: u32 = 0x1F000 + 16 * 10;
/// The largest K and M or N that this model takes.
const MOST: usize = 1 << 20;

/// Makes a job of the parameters of all released cores: `cores[column][row]`, row 0 being the first row of cores.
pub(super) fn job(kind: Kind, cores: &[[Option<[u32; PARAMETERS]>; 4]; 8]) -> Result<Job, String> {
    let mut common: Option<[u32; PARAMETERS]> = None;
    let mut shares = [None; 8];
    for (column, rows) in cores.iter().enumerate() {
        for (row, words) in rows.iter().enumerate() {
            let Some(words) = words else { continue };
            let mut shared = *words;
            let share = std::mem::take(&mut shared[7]) as usize;
            let place = || format!("core ({column}, {})", row + 2);
            if *common.get_or_insert(shared) != shared {
                return Err(format!("{} has other runtime parameters than the cores before it", place()));
            }
            if *shares[column].get_or_insert(share) != share {
                return Err(format!("{} has another share of the work than its column", place()));
            }
        }
    }
    let [magic, format, m, n, k, epilogue, flags, _] = common.ok_or("no core has been released")?;
    let expected = 0x4B52_0000 | VERSION << 8 | if kind == Kind::Gemm { 1 } else { 2 };
    if magic != expected {
        return Err(format!("runtime parameters start with {magic:#x}, this kernel's with {expected:#x}"));
    }
    let format = match format {
        0 => Format::Bfp16,
        1 => Format::F32,
        2 => Format::Bfp6s,
        other => return Err(format!("unknown number format {other}")),
    };
    let (m, k) = (m as usize, k as usize);
    if k == 0 || k > MOST / 16 || !k.is_multiple_of(512) {
        return Err(format!("K = {k} is no multiple of 512 up to {}", MOST / 16));
    }
    let size = |what: &str, value: usize, of: usize| match value {
        value if value > 0 && value <= MOST && value.is_multiple_of(of) => Ok(()),
        _ => Err(format!("{what} = {value} is no multiple of {of} up to {MOST}")),
    };
    if flags & !3 != 0 {
        return Err(format!("unknown flags {flags:#x}"));
    }
    let (bias, streamed) = (flags & 1 != 0, flags & 2 != 0);
    match kind {
        Kind::Gemm => {
            let n = n as usize;
            size("M", m, 256)?;
            size("N", n, 64)?;
            let epilogue = match epilogue {
                0 => Epilogue::None,
                1 => Epilogue::GeluTanh,
                2 => Epilogue::Silu,
                3 => Epilogue::PairedSwiglu,
                other => return Err(format!("unknown epilogue {other}")),
            };
            if cores.iter().flatten().any(Option::is_none) {
                return Err("a GEMM needs all 32 cores released".to_owned());
            }
            for (column, share) in shares.iter().enumerate() {
                let expected = n / 64 / 8 + usize::from(column < n / 64 % 8);
                if *share != Some(expected) {
                    return Err(format!("column {column} has {share:?} blocks of work, N = {n} gives it {expected}"));
                }
            }
            Ok(Job::Gemm(GemmJob { rows: m, k, n, epilogue, bias, streamed, format }))
        }
        Kind::Gemv => {
            let (order, of) = match n {
                0 => (Order::Stream, 64),
                1 if bias => return Err("bias chunks in row order".to_owned()),
                1 => (Order::Rows, 8),
                other => return Err(format!("unknown weight order {other}")),
            };
            size("M", m, of)?;
            if epilogue != 0 || streamed {
                return Err(format!("a GEMV with epilogue {epilogue} and flags {flags:#x}"));
            }
            let shares = shares.map(Option::unwrap_or_default);
            if shares.iter().sum::<usize>() != m || shares.iter().any(|s| !s.is_multiple_of(of)) {
                return Err(format!("shares {shares:?} do not make M = {m}"));
            }
            Ok(Job::Gemv(GemvJob { shares, k, order, bias, format }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain image with these CDO words.
    fn image(payload: &[u32]) -> Vec<u8> {
        let mut words = vec![0; CDO / 4];
        words[0] = 0xDD;
        words.extend([4, u32::from_le_bytes(*b"CDO\0"), 0x200, payload.len() as u32, 0]);
        words.extend(payload);
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn named(kind: u32, version: u32) -> Vec<u32> {
        let marker = MARKER.as_chunks().0.iter().map(|c| u32::from_le_bytes(*c));
        // A write before it, with the length in a word of its own.
        [0x103 | 255 << 16, 2, 0x32000, 1, 0x111 | 6 << 16].into_iter().chain(marker).chain([kind, version]).collect()
    }

    #[test]
    fn a_marker_names_the_kernel_and_everything_else_is_opaque() {
        assert_eq!(Kernel::of_pdi(&image(&named(1, 1))), Ok(Kernel::Reference(Kind::Gemm)));
        assert_eq!(Kernel::of_pdi(&image(&named(2, 1))), Ok(Kernel::Reference(Kind::Gemv)));
        for (kind, version) in [(1, 2), (3, 1)] {
            assert!(Kernel::of_pdi(&image(&named(kind, version))).unwrap_err().contains("this model knows"));
        }
        let grouped = {
            let mut pdi = image(&named(1, 1));
            pdi[0x140] = 1;
            pdi
        };
        for opaque in [grouped, image(&[0x111, 0x103 | 2 << 16, 0, 0]), vec![0; 4096], vec![0xDD]] {
            assert!(matches!(Kernel::of_pdi(&opaque), Ok(Kernel::Opaque(_))));
        }
        assert!(Kernel::of_pdi(&[]).is_err());
        // A payload that claims to be longer than the file.
        let whole = image(&named(1, 1));
        for len in 1..whole.len() {
            assert!(matches!(Kernel::of_pdi(&whole[..len]), Ok(Kernel::Opaque(_))), "{len}");
        }
        assert!(matches!(Kernel::of_pdi(&image(&[0x111 | 255 << 16, u32::MAX])), Ok(Kernel::Opaque(_))));
    }

    #[test]
    fn parameters_that_no_kernel_has_are_refused() {
        let good = [0x4B52_0101, 0, 256, 512, 512, 3, 3, 1];
        let all = |words: [u32; PARAMETERS]| [[Some(words); 4]; 8];
        assert!(matches!(job(Kind::Gemm, &all(good)), Ok(Job::Gemm(GemmJob { streamed: true, bias: true, .. }))));
        let wrong = [
            (0, 0),
            (1, 3),
            (2, 0),
            (2, 128),
            (2, 1 << 21),
            (3, 96),
            (3, 576),
            (4, 256),
            (4, 1 << 20),
            (5, 4),
            (6, 4),
            (7, 2),
        ];
        for (word, value) in wrong {
            let mut words = good;
            words[word] = value;
            assert!(job(Kind::Gemm, &all(words)).is_err(), "word {word} = {value}");
        }
        let mut cores = all(good);
        cores[3][2] = None;
        assert!(job(Kind::Gemm, &cores).unwrap_err().contains("all 32 cores"));
        assert!(job(Kind::Gemm, &[[None; 4]; 8]).unwrap_err().contains("no core"));

        let good = [0x4B52_0102, 1, 72, 1, 512, 0, 0, 72];
        let one = |words: [u32; PARAMETERS]| {
            let mut cores = [[None; 4]; 8];
            cores[0][0] = Some(words);
            cores
        };
        assert!(matches!(job(Kind::Gemv, &one(good)), Ok(Job::Gemv(GemvJob { shares: [72, 0, ..], .. }))));
        for (word, value) in [(0, 0x4B52_0101), (2, 73), (3, 0), (3, 2), (5, 1), (6, 1), (6, 2), (7, 64), (7, 71)] {
            let mut words = good;
            words[word] = value;
            assert!(job(Kind::Gemv, &one(words)).is_err(), "word {word} = {value}");
        }
    }
}
