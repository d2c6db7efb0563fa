//! Captures: one file per link, every packet as it is on the wire, from the local route header to
//! the variant CRC.
//!
//! The packets are wrapped in ERF records, link type 197: see [`fabric::capture`].

use std::borrow::Cow;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fabric::capture::{RECORD_BYTES_MAX, encode_record};
use fabric::transit::Transit;
use ipoib_rs::ib::Psn;
use ipoib_rs::ib::Qpn;
use ipoib_rs::time::Instant;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};

use crate::error::Error;

/// What a capture holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Extent {
    /// Every packet.
    Everything,
    /// Everything but connections: what they carry would fill the disk.
    Datagrams,
}

/// Where captures go.
#[derive(Clone, Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// Makes the directory if it is not there and checks that it can be written to.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`] if not.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::CaptureDirectory(path.to_owned(), source);
        fs::create_dir_all(path).map_err(failed)?;
        let probe = path.join(format!(".ipoib-lab-{}", std::process::id()));
        File::create(&probe).map_err(failed)?;
        fs::remove_file(&probe).map_err(failed)?;
        Ok(Self(path.to_owned()))
    }

    /// The file of a link.
    pub(crate) fn path(&self, link: &str) -> PathBuf {
        self.0.join(format!("{link}.pcap"))
    }

    /// Starts the capture of one link. `now` is the time of the lab's clock.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`] if the file cannot be made.
    pub(crate) fn create(
        &self,
        link: &str,
        extent: Extent,
        now: Instant,
    ) -> Result<Capture, Error> {
        let path = self.path(link);
        let failed = |source| Error::CaptureDirectory(path.clone(), source);
        let file = File::create(&path).map_err(failed)?;
        let header = PcapHeader {
            datalink: DataLink::ERF,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(BufWriter::new(file), header)
            .map_err(|error| failed(io::Error::other(error)))?;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Capture {
            writer,
            path,
            extent,
            epoch: since_epoch.saturating_sub(now.saturating_since(Instant::ZERO)),
            record: vec![0; RECORD_BYTES_MAX],
            sent_last: None,
        })
    }
}

/// A directory for captures that nobody asked for, removed with the value.
#[derive(Debug)]
pub(crate) struct Scratch(Directory);

impl Scratch {
    /// Makes it, below the system's directory for temporary files.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`].
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        let name = format!("ipoib-lab-{}-{name}", std::process::id());
        Directory::open(&std::env::temp_dir().join(name)).map(Self)
    }

    /// The directory.
    pub(crate) fn directory(&self) -> &Directory {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0.0) {
            eprintln!("ipoib-lab: {}: {error}", self.0.0.display());
        }
    }
}

/// The capture of one link.
pub(crate) struct Capture {
    writer: PcapWriter<BufWriter<File>>,
    path: PathBuf,
    extent: Extent,
    /// The time of day at which the lab's clock was zero.
    epoch: Duration,
    record: Vec<u8>,
    /// The queue pair and sequence number of the last packet that left the port of this link, if it
    /// was a datagram.
    sent_last: Option<(Qpn, Psn)>,
}

impl Capture {
    /// Adds a packet that leaves the port of this link. The switch makes the copies of a multicast
    /// packet: on this link there is one.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`] if the file system refuses.
    pub(crate) fn write_sent(&mut self, now: Instant, transit: &Transit) -> Result<(), Error> {
        let header = transit.header();
        let identity = (!transit.is_connected()).then_some((header.source_qpn, header.psn));
        if identity.is_some() && self.sent_last == identity {
            return Ok(());
        }
        self.sent_last = identity;
        self.write(now, transit)
    }

    /// Adds a packet that arrives at the port of this link.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`] if the file system refuses.
    pub(crate) fn write_arrived(&mut self, now: Instant, transit: &Transit) -> Result<(), Error> {
        self.write(now, transit)
    }

    fn write(&mut self, now: Instant, transit: &Transit) -> Result<(), Error> {
        match self.extent {
            Extent::Datagrams if transit.is_connected() => return Ok(()),
            Extent::Datagrams | Extent::Everything => {}
        }
        let time = self.epoch + now.saturating_since(Instant::ZERO);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let now = Instant::from_nanos(nanos);
        for number in 0..transit.packet_count() {
            let Some(len) = encode_record(transit, number, now, &mut self.record) else {
                return Ok(());
            };
            let packet = PcapPacket {
                timestamp: time,
                orig_len: u32::try_from(len).unwrap_or(u32::MAX),
                data: Cow::Borrowed(&self.record[..len]),
            };
            self.writer.write_packet(&packet).map_err(|error| {
                Error::CaptureDirectory(self.path.clone(), io::Error::other(error))
            })?;
        }
        Ok(())
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`] if the file system refuses.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let path = self.path;
        self.writer.into_writer().flush().map_err(|source| Error::CaptureDirectory(path, source))
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({})", self.path.display())
    }
}
