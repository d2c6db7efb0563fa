//! Captures: one file per link, every packet as it is on the wire, from the local route header to the
//! variant CRC.
//!
//! The packets are wrapped in ERF records of type 21, INFINIBAND (link type 197). tshark 4.0 of
//! Debian 12 refuses link type 247 (InfiniBand without ERF) as unsupported; it reads ERF without any
//! preference, down to the ARP and IP packets and the attributes of the SA's datagrams.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipoib_rs::time::Instant;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};

use crate::error::Error;

/// The record header: time stamp (8), type, flags, record length (2), loss counter (2), wire length
/// (2).
const ERF_HEADER_BYTES: usize = 16;
const ERF_TYPE_INFINIBAND: u8 = 21;
/// Records have the length of their packet; capture interface 0.
const ERF_FLAG_VARYING_LENGTH: u8 = 1 << 2;
/// Records are a multiple of this long.
const ERF_ALIGNMENT_BYTES: usize = 8;

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

    /// Starts the capture of one link.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`] if the file cannot be made.
    pub(crate) fn create(&self, link: &str, now: Instant) -> Result<Capture, Error> {
        let path = self.0.join(format!("{link}.pcap"));
        let failed = |source| Error::CaptureDirectory(path.clone(), source);
        let file = File::create(&path).map_err(failed)?;
        let header = PcapHeader {
            datalink: DataLink::ERF,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(BufWriter::new(file), header)
            .map_err(|error| failed(io::Error::other(error)))?;
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Capture {
            writer,
            path,
            epoch: since_epoch.saturating_sub(Duration::from_nanos(now.as_nanos())),
            record: Vec::new(),
        })
    }
}

/// The capture of one link.
pub(crate) struct Capture {
    writer: PcapWriter<BufWriter<File>>,
    path: PathBuf,
    /// The time of day at which the lab's clock was zero.
    epoch: Duration,
    record: Vec<u8>,
}

impl Capture {
    /// Adds a packet: local route header to variant CRC.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`] if the file system refuses.
    pub(crate) fn write(&mut self, now: Instant, packet: &[u8]) -> Result<(), Error> {
        let time = self.epoch + Duration::from_nanos(now.as_nanos());
        fill_record(&mut self.record, time, packet);
        let length = u32::try_from(self.record.len()).unwrap_or(u32::MAX);
        let packet = PcapPacket {
            timestamp: time,
            orig_len: length,
            data: Cow::Borrowed(&self.record),
        };
        self.writer
            .write_packet(&packet)
            .map(drop)
            .map_err(|error| Error::CaptureDirectory(self.path.clone(), io::Error::other(error)))
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    ///
    /// [`Error::CaptureDirectory`] if the file system refuses.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let path = self.path;
        self.writer
            .into_writer()
            .flush()
            .map_err(|source| Error::CaptureDirectory(path, source))
    }
}

fn fill_record(record: &mut Vec<u8>, time: Duration, packet: &[u8]) {
    let padded = packet.len().next_multiple_of(ERF_ALIGNMENT_BYTES);
    // Little endian, 32 bits of seconds and 32 bits of fraction; all else is big endian.
    let fraction = (u64::from(time.subsec_nanos()) << 32) / 1_000_000_000;
    let stamp = (time.as_secs() << 32) | fraction;
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    record.clear();
    record.extend_from_slice(&stamp.to_le_bytes());
    record.extend_from_slice(&[ERF_TYPE_INFINIBAND, ERF_FLAG_VARYING_LENGTH]);
    record.extend_from_slice(&length(ERF_HEADER_BYTES + padded));
    record.extend_from_slice(&[0, 0]);
    record.extend_from_slice(&length(packet.len()));
    record.extend_from_slice(packet);
    record.resize(ERF_HEADER_BYTES + padded, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_a_header_and_the_packet_padded_to_eight_bytes() {
        let mut record = vec![0xEE; 100];
        fill_record(&mut record, Duration::from_millis(2500), &[7; 13]);
        assert_eq!(record.len(), 32);
        assert_eq!(record[..8], [0, 0, 0, 0x80, 2, 0, 0, 0]);
        assert_eq!(record[8..16], [21, 4, 0, 32, 0, 0, 0, 13]);
        assert_eq!(record[16..29], [7; 13]);
        assert_eq!(record[29..], [0; 3]);
    }
}
