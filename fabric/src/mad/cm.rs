//! Management datagrams of communication management: bytes (IBA 12.6).
//!
//! [`parse`] checks what must hold of any of them. What a field means is checked when the meaning
//! is taken out of the layout ([`RequestWire::request`]), because the answer to a REQ that cannot
//! be understood is a REJ with its reason. Reserved fields are sent as zero and not looked at on
//! receipt.

mod ipoib;
mod path;
mod reason;
mod reply;
mod request;
mod short;
mod value;

pub use ipoib::{IPOIB_PRIVATE_BYTES, IpoibPrivateData};
pub use ipoib_rs::ib::{Psn, ServiceId};
pub use path::{CM_PATH_BYTES, CmPath, CmPathWire};
pub use reason::RejectReason;
pub use reply::{REPLY_PRIVATE_BYTES, Reply, ReplyWire};
pub use request::{REQUEST_PRIVATE_BYTES, Request, RequestWire};
pub use short::{
    ADDITIONAL_BYTES, CommIds, DisconnectReplyWire, DisconnectRequestWire, MraWire,
    REJECT_PRIVATE_BYTES, ReadyToUseWire, RejectWire,
};
pub use value::{CmRetries, CommId, MessageKind, RetryCount, TimeoutCode};

use core::mem::offset_of;

use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BASE_VERSION, MAD_BYTES, MadHeader};

/// MgmtClass ComMgt (IBA 13.4.4).
pub const CM_CLASS: u8 = 0x07;
/// ClassVersion of ComMgt (IBA 16.7.1).
pub const CM_CLASS_VERSION: u8 = 2;
/// ComMgtSend, the only method of the messages here (IBA 16.7.2): none of them is a response in the
/// sense of IBA 13.4.5.
pub const METHOD_SEND: u8 = 0x03;
/// The length of the data area (IBA 16.7.1).
pub const CM_DATA_BYTES: usize = 232;

/// The messages of connection establishment and release (IBA 12.6, 16.7.3).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u16)]
pub enum CmAttribute {
    /// ConnectRequest, REQ.
    Request = 0x0010,
    /// MsgRcptAck, MRA.
    Mra = 0x0011,
    /// ConnectReject, REJ.
    Reject = 0x0012,
    /// ConnectReply, REP.
    Reply = 0x0013,
    /// ReadyToUse, RTU.
    ReadyToUse = 0x0014,
    /// DisconnectRequest, DREQ.
    DisconnectRequest = 0x0015,
    /// DisconnectReply, DREP.
    DisconnectReply = 0x0016,
}

impl CmAttribute {
    /// `None` for a message that is not used here.
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            0x0010 => Some(Self::Request),
            0x0011 => Some(Self::Mra),
            0x0012 => Some(Self::Reject),
            0x0013 => Some(Self::Reply),
            0x0014 => Some(Self::ReadyToUse),
            0x0015 => Some(Self::DisconnectRequest),
            0x0016 => Some(Self::DisconnectReply),
            _ => None,
        }
    }

    /// The code.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

/// A MAD of communication management (IBA 16.7.1).
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct CmMad {
    /// The common header.
    pub header: MadHeader,
    /// The message.
    pub data: [u8; CM_DATA_BYTES],
}

const_assert_eq!(size_of::<CmMad>(), MAD_BYTES);
const_assert_eq!(offset_of!(CmMad, data), 24);

/// Why bytes are not a message that is understood.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CmParseError {
    /// Not 256 bytes.
    Length,
    /// A BaseVersion other than 1.
    BaseVersion,
    /// A MgmtClass other than ComMgt.
    Class,
    /// A ClassVersion other than 2.
    ClassVersion,
    /// A method other than ComMgtSend.
    Method,
    /// An attribute that is not used here.
    Attribute,
}

/// A message, in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Message<'a> {
    /// REQ.
    Request(&'a RequestWire),
    /// MRA.
    Mra(&'a MraWire),
    /// REJ.
    Reject(&'a RejectWire),
    /// REP.
    Reply(&'a ReplyWire),
    /// RTU.
    ReadyToUse(&'a ReadyToUseWire),
    /// DREQ.
    DisconnectRequest(&'a DisconnectRequestWire),
    /// DREP.
    DisconnectReply(&'a DisconnectReplyWire),
}

/// A message and the transaction that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CmMessage<'a> {
    /// TransactionID: that of the REQ for all messages up to RTU, that of the DREQ for its DREP.
    pub transaction: u64,
    /// The message.
    pub message: Message<'a>,
}

/// Checks length, versions, class, method and attribute.
pub fn parse(bytes: &[u8]) -> Result<CmMessage<'_>, CmParseError> {
    let mad = CmMad::ref_from_bytes(bytes).map_err(|_| CmParseError::Length)?;
    let header = &mad.header;
    if header.base_version != BASE_VERSION {
        return Err(CmParseError::BaseVersion);
    }
    if header.class != CM_CLASS {
        return Err(CmParseError::Class);
    }
    if header.class_version != CM_CLASS_VERSION {
        return Err(CmParseError::ClassVersion);
    }
    if header.method != METHOD_SEND {
        return Err(CmParseError::Method);
    }
    let attribute =
        CmAttribute::from_code(header.attribute.get()).ok_or(CmParseError::Attribute)?;
    // Every layout is as long as the data area, so that the length is never wrong here.
    let message = match attribute {
        CmAttribute::Request => RequestWire::ref_from_bytes(&mad.data).map(Message::Request).ok(),
        CmAttribute::Mra => MraWire::ref_from_bytes(&mad.data).map(Message::Mra).ok(),
        CmAttribute::Reject => RejectWire::ref_from_bytes(&mad.data).map(Message::Reject).ok(),
        CmAttribute::Reply => ReplyWire::ref_from_bytes(&mad.data).map(Message::Reply).ok(),
        CmAttribute::ReadyToUse => {
            ReadyToUseWire::ref_from_bytes(&mad.data).map(Message::ReadyToUse).ok()
        }
        CmAttribute::DisconnectRequest => {
            DisconnectRequestWire::ref_from_bytes(&mad.data).map(Message::DisconnectRequest).ok()
        }
        CmAttribute::DisconnectReply => {
            DisconnectReplyWire::ref_from_bytes(&mad.data).map(Message::DisconnectReply).ok()
        }
    };
    Ok(CmMessage {
        transaction: header.transaction.get(),
        message: message.ok_or(CmParseError::Length)?,
    })
}

impl Message<'_> {
    /// Which message it is.
    pub const fn attribute(&self) -> CmAttribute {
        match self {
            Self::Request(_) => CmAttribute::Request,
            Self::Mra(_) => CmAttribute::Mra,
            Self::Reject(_) => CmAttribute::Reject,
            Self::Reply(_) => CmAttribute::Reply,
            Self::ReadyToUse(_) => CmAttribute::ReadyToUse,
            Self::DisconnectRequest(_) => CmAttribute::DisconnectRequest,
            Self::DisconnectReply(_) => CmAttribute::DisconnectReply,
        }
    }

    /// The bytes to send.
    pub fn to_bytes(&self, transaction: u64) -> [u8; MAD_BYTES] {
        let data = match self {
            Self::Request(wire) => wire.as_bytes(),
            Self::Mra(wire) => wire.as_bytes(),
            Self::Reject(wire) => wire.as_bytes(),
            Self::Reply(wire) => wire.as_bytes(),
            Self::ReadyToUse(wire) => wire.as_bytes(),
            Self::DisconnectRequest(wire) => wire.as_bytes(),
            Self::DisconnectReply(wire) => wire.as_bytes(),
        };
        let mut mad = CmMad {
            header: MadHeader {
                base_version: BASE_VERSION,
                class: CM_CLASS,
                class_version: CM_CLASS_VERSION,
                method: METHOD_SEND,
                status: U16::ZERO,
                class_specific: U16::ZERO,
                transaction: U64::new(transaction),
                attribute: U16::new(self.attribute().code()),
                reserved: U16::ZERO,
                modifier: U32::ZERO,
            },
            ..CmMad::new_zeroed()
        };
        mad.data.copy_from_slice(data);
        zerocopy::transmute!(mad)
    }
}

/// A number of 24 bits and 8 bits behind it.
const fn pack_24_8(high: u32, low: u8) -> U32 {
    U32::new(high << 8 | low as u32)
}

/// The number in front and the bits behind it.
const fn unpack_24_8(word: U32) -> (u32, u8) {
    let [a, b, c, low] = word.to_bytes();
    (u32::from_be_bytes([0, a, b, c]), low)
}

#[cfg(test)]
mod tests;
