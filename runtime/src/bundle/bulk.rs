//! Reading gigabytes into buffers without a second copy of them staying behind in the page cache.
//!
//! Pieces are read by several threads: a disk answers many requests in little more time than one. What the page cache
//! has already is copied from there. The rest is read past it (`O_DIRECT`), by way of a small buffer a thread, for the
//! system wants both ends aligned and tensors are not; where the file system does not do that, each piece is dropped
//! from the cache as soon as it is copied.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, IoSliceMut};
use std::num::NonZero;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use bytemuck::{Pod, Zeroable};
use host_ops::pool::Pool;
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Bytes of one request.
const PIECE: usize = 1 << 20;
/// Requests at a time. They wait more than they work, so this has nothing to do with cores.
const READERS: usize = 8;
/// What `O_DIRECT` wants addresses, places and lengths to be a multiple of; no disk has larger blocks.
const BLOCK: u64 = 4096;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK as usize]);

/// Reads one file in bulk.
#[derive(Debug)]
pub(super) struct Bulk<'a> {
    file: &'a File,
    /// The same file past the page cache.
    direct: Option<File>,
    /// The same file, of which the system reads no more than is asked for.
    probe: Option<File>,
    random: RandomState,
    readers: Pool,
}

impl<'a> Bulk<'a> {
    /// A reader of `file`, which was opened from `path`.
    pub(super) fn new(file: &'a File, path: &Path) -> Self {
        let again = |flags: OFlags| {
            let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
            let other = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
            // The path may lead elsewhere by now.
            let (a, b) = (file.metadata().ok()?, other.metadata().ok()?);
            ((a.dev(), a.ino()) == (b.dev(), b.ino())).then_some(other)
        };
        let direct = again(OFlags::DIRECT);
        let probe = again(OFlags::empty()).filter(|probe| fadvise(probe, 0, None, Advice::Random).is_ok());
        Self { file, direct, probe, random: RandomState::new(), readers: Pool::new(READERS) }
    }

    /// Reads bytes `at..at + out.len()` of the file.
    ///
    /// # Errors
    /// What the system says; `UnexpectedEof` where the file ends too early.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let cached = self.is_cached(at, out.len() as u64);
        let failed = Mutex::new(None);
        let fault = || failed.lock().unwrap_or_else(PoisonError::into_inner);
        self.readers.run_chunks(out, PIECE, &|i, out| {
            if fault().is_some() {
                return;
            }
            if let Err(error) = self.piece(at + (i * PIECE) as u64, out, cached) {
                fault().get_or_insert(error);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Reads many ranges of the file at once: the disk always has requests of all readers before it, whatever the lengths
    /// of the ranges. `written` gets each piece, by its range's index, as soon as it is there, on any thread; `progress`
    /// the bytes that are there so far, on this one.
    ///
    /// # Errors
    /// As [`Bulk::read`], with the index of the range that it is about.
    pub(super) fn read_many(
        &self,
        ranges: Vec<(u64, &mut [u8])>,
        written: &(dyn Fn(usize, Range<usize>) + Sync),
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), (usize, io::Error)> {
        let mut pieces = Vec::new();
        for (index, (at, out)) in ranges.into_iter().enumerate() {
            let cached = self.is_cached(at, out.len() as u64);
            for (i, out) in out.chunks_mut(PIECE).enumerate() {
                pieces.push(Piece { index, at, from: i * PIECE, out, cached });
            }
        }
        let (left, failed) = (Mutex::new(pieces.into_iter()), Mutex::new(None));
        let (done, all) = mpsc::channel();
        let work = |done: mpsc::Sender<usize>| {
            loop {
                let next = lock(&left).next();
                let Some(piece) = next.filter(|_| lock(&failed).is_none()) else { return };
                let (bytes, place) = (piece.out.len(), piece.at + piece.from as u64);
                if let Err(error) = self.piece(place, piece.out, piece.cached) {
                    lock(&failed).get_or_insert((piece.index, error));
                    return;
                }
                written(piece.index, piece.from..piece.from + bytes);
                // Nobody listens any more only if all has been given up.
                let _ = done.send(bytes);
            }
        };
        std::thread::scope(|scope| {
            let mut readers = 0;
            for i in 0..READERS {
                let (work, done) = (&work, done.clone());
                let reader = std::thread::Builder::new().name(format!("read-{i}"));
                readers += usize::from(reader.spawn_scoped(scope, move || work(done)).is_ok());
            }
            if readers == 0 {
                work(done);
            } else {
                drop(done);
            }
            let mut sum = 0;
            for bytes in all {
                sum += bytes as u64;
                progress(sum);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn piece(&self, at: u64, out: &mut [u8], cached: bool) -> io::Result<()> {
        if !cached && let Some(direct) = &self.direct {
            match past_the_cache(direct, at, out) {
                Err(error) if error.kind() != ErrorKind::UnexpectedEof => {}
                done => return done,
            }
        }
        self.file.read_exact_at(out, at)?;
        if !cached {
            // Whole pages only are dropped. That it fails means that more memory is in use, no more.
            let _ = fadvise(self.file, at, NonZero::new(out.len() as u64), Advice::DontNeed);
        }
        Ok(())
    }

    /// Whether a range seems to be in the page cache: three of its bytes are, anywhere. A byte that is not may be
    /// fetched, with its page, by being asked for; so the next reader of the file had better ask for others.
    fn is_cached(&self, at: u64, len: u64) -> bool {
        let Some(probe) = self.probe.as_ref().filter(|_| len > 0) else { return false };
        (0..3).all(|i| {
            let place = at + self.random.hash_one((at, i)) % len;
            preadv2(probe, &mut [IoSliceMut::new(&mut [0])], place, ReadWriteFlags::NOWAIT) == Ok(1)
        })
    }
}

/// A part of a range.
struct Piece<'a> {
    index: usize,
    /// Where the range starts in the file, and the piece in the range.
    at: u64,
    from: usize,
    out: &'a mut [u8],
    cached: bool,
}

/// What these locks guard is whole at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads past the page cache, by way of this thread's aligned buffer.
fn past_the_cache(file: &File, at: u64, out: &mut [u8]) -> io::Result<()> {
    thread_local! { static BUFFER: Cell<Vec<Block>> = const { Cell::new(Vec::new()) }; }
    let before = (at % BLOCK) as usize;
    let mut buffer = BUFFER.take();
    buffer.resize((before + out.len()).div_ceil(BLOCK as usize), Block::zeroed());
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut buffer);
    let mut got = 0;
    let done = loop {
        if got >= before + out.len() {
            out.copy_from_slice(&bytes[before..before + out.len()]);
            break Ok(());
        }
        match file.read_at(&mut bytes[got..], at - before as u64 + got as u64) {
            // Less than whole blocks is what the end of a file gives.
            Ok(n) if n % BLOCK as usize == 0 && n > 0 => got += n,
            Ok(n) if got + n >= before + out.len() => got += n,
            Ok(_) => break Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Err(error) => break Err(error),
        }
    };
    BUFFER.set(buffer);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Named(PathBuf);

    impl Named {
        fn new(name: &str, bytes: &[u8]) -> Named {
            let path = std::env::temp_dir().join(format!("qwen35-bulk-{name}-{}", std::process::id()));
            std::fs::write(&path, bytes).unwrap();
            Named(path)
        }
    }

    impl Drop for Named {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn contents(len: usize) -> Vec<u8> {
        (0..len as u32).flat_map(|i| i.wrapping_mul(0x9E37_79B9).to_le_bytes()).take(len).collect()
    }

    #[test]
    fn every_way_gives_the_bytes_of_the_file() {
        let bytes = contents(3 * PIECE + 12_345);
        let named = Named::new("ways", &bytes);
        let file = File::open(&named.0).unwrap();
        file.sync_all().unwrap();
        let mut bulk = Bulk::new(&file, &named.0);
        for way in 0..3 {
            match way {
                0 => {}
                // Cached or not cannot be told; then: no way past the cache.
                1 => bulk.probe = None,
                _ => bulk.direct = None,
            }
            for (at, len) in [(0, bytes.len()), (64, PIECE), (4096, 8192), (12_344, 2 * PIECE + 1), (7, 0), (5, 3)] {
                let mut out = vec![0; len];
                bulk.read(at as u64, &mut out).unwrap();
                assert!(out == bytes[at..at + len], "way {way}, {len} bytes at {at}");
            }
            let places = [(0, 2 * PIECE + 7), (64, 0), (12_344, PIECE), (bytes.len() - 5, 5)];
            let mut outs: Vec<Vec<u8>> = places.iter().map(|&(_, len)| vec![0; len]).collect();
            let ranges = places.iter().zip(&mut outs).map(|(&(at, _), out)| (at as u64, &mut out[..])).collect();
            let (seen, mut shown) = (Mutex::new(vec![0; places.len()]), vec![0]);
            let written = |index: usize, range: Range<usize>| lock(&seen)[index] += range.len();
            bulk.read_many(ranges, &written, &mut |bytes| shown.push(bytes)).unwrap();
            for (&(at, len), out) in places.iter().zip(&outs) {
                assert!(*out == bytes[at..at + len], "way {way}, {len} bytes at {at} among others");
            }
            assert_eq!(seen.into_inner().unwrap(), places.map(|(_, len)| len));
            assert!(shown.is_sorted() && shown[shown.len() - 1] == places.iter().map(|p| p.1 as u64).sum::<u64>());
            let mut short = [0; 11];
            let ranges = vec![(0, &mut outs[0][..]), (bytes.len() as u64 - 10, &mut short[..])];
            let (index, error) = bulk.read_many(ranges, &|_, _| {}, &mut |_| {}).unwrap_err();
            assert_eq!((index, error.kind()), (1, ErrorKind::UnexpectedEof), "way {way}");
            for (at, len) in [(bytes.len() - 10, 11), (0, bytes.len() + 1), (bytes.len() + 9000, 1)] {
                let error = bulk.read(at as u64, &mut vec![0; len]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "way {way}, {len} bytes at {at}: {error}");
            }
        }
    }

    #[test]
    fn a_file_that_took_the_place_of_another_is_not_read() {
        let named = Named::new("other", &contents(5000));
        let file = File::open(&named.0).unwrap();
        std::fs::remove_file(&named.0).unwrap();
        std::fs::write(&named.0, vec![0; 5000]).unwrap();
        let bulk = Bulk::new(&file, &named.0);
        assert!(bulk.direct.is_none() && bulk.probe.is_none());
        let mut out = vec![0; 5000];
        bulk.read(0, &mut out).unwrap();
        assert_eq!(out, contents(5000));
    }
}
