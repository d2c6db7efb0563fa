//! Management datagrams of subnet administration: bytes (IBA 13.4, 15.2).
//!
//! Every MAD is 256 bytes. [`parse`] checks what must hold of any MAD for the SA; what a method and
//! attribute mean is left to [`crate::sa`] and [`crate::sm`]. Reserved fields are sent as zero and
//! not looked at on receipt (IBA 13.4.2).

pub mod cm;
mod member;
mod path;
mod port_info;
mod selector;

pub use member::{JoinState, MEMBER_RECORD_BYTES, MemberComponents, MemberRecordWire};
pub use path::{PATH_RECORD_BYTES, PathComponents, PathRecordWire};
pub use port_info::{CLASS_PORT_INFO_BYTES, ClassPortInfo, SaCapabilityMask, SaCapabilityMask2};
pub use selector::{Selector, rate_mbps};

use core::fmt;
use core::mem::offset_of;

use ipoib_rs::action::{SaError, SaRefusal};
use static_assertions::const_assert_eq;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The length of every MAD (IBA 13.4.2).
pub const MAD_BYTES: usize = 256;
/// The length of the data area of a MAD for the SA (IBA 15.2.1.1).
pub const SA_DATA_BYTES: usize = 200;
/// BaseVersion (IBA 13.4.2).
pub const BASE_VERSION: u8 = 1;
/// MgmtClass SubnAdm (IBA 13.4.4).
pub const SA_CLASS: u8 = 0x03;
/// ClassVersion of SubnAdm (IBA 15.2.1).
pub const SA_CLASS_VERSION: u8 = 2;
/// The bit of a method that says that the MAD is a response (IBA 13.4.5).
pub const METHOD_RESPONSE: u8 = 0x80;

/// The methods of the SA that are used here (IBA 15.2.2).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Method {
    /// SubnAdmGet.
    Get = 0x01,
    /// SubnAdmSet.
    Set = 0x02,
    /// SubnAdmDelete.
    Delete = 0x15,
    /// SubnAdmGetResp, the response to Get and to Set.
    GetResponse = 0x81,
    /// SubnAdmDeleteResp.
    DeleteResponse = 0x95,
}

impl Method {
    /// `None` for a method that is not used here.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0x01 => Some(Self::Get),
            0x02 => Some(Self::Set),
            0x15 => Some(Self::Delete),
            0x81 => Some(Self::GetResponse),
            0x95 => Some(Self::DeleteResponse),
            _ => None,
        }
    }

    /// The code.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The method of the answer; `None` if this is an answer itself.
    pub const fn response(self) -> Option<Self> {
        match self {
            Self::Get | Self::Set => Some(Self::GetResponse),
            Self::Delete => Some(Self::DeleteResponse),
            Self::GetResponse | Self::DeleteResponse => None,
        }
    }
}

/// The attributes of the SA that are used here (IBA 15.2.5).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u16)]
pub enum Attribute {
    /// ClassPortInfo.
    ClassPortInfo = 0x0001,
    /// PathRecord.
    PathRecord = 0x0035,
    /// MCMemberRecord.
    MemberRecord = 0x0038,
}

impl Attribute {
    /// `None` for an attribute that is not used here.
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            0x0001 => Some(Self::ClassPortInfo),
            0x0035 => Some(Self::PathRecord),
            0x0038 => Some(Self::MemberRecord),
            _ => None,
        }
    }

    /// The code.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The distance of two records of this kind, in units of 8 bytes (IBA 15.2.1.1).
    const fn offset(self) -> u16 {
        let bytes = match self {
            Self::ClassPortInfo => CLASS_PORT_INFO_BYTES,
            Self::PathRecord => PATH_RECORD_BYTES,
            Self::MemberRecord => MEMBER_RECORD_BYTES,
        };
        bytes.div_ceil(8) as u16
    }
}

/// The status of a MAD: bits 0 to 7 common to all classes (IBA 13.4.7), bits 8 to 15 those of the
/// class (IBA 15.2.7).
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Status(pub u16);

impl Status {
    /// Done.
    pub const SUCCESS: Self = Self(0x0000);
    /// Ask again later.
    pub const BUSY: Self = Self(0x0001);
    /// Ask elsewhere.
    pub const REDIRECT: Self = Self(0x0002);
    /// The class or the version is not supported.
    pub const BAD_VERSION: Self = Self(0x0004);
    /// The method is not supported.
    pub const UNSUPPORTED_METHOD: Self = Self(0x0008);
    /// The method is not supported for this attribute.
    pub const UNSUPPORTED_ATTRIBUTE: Self = Self(0x000C);
    /// A value in the attribute or the modifier is invalid.
    pub const INVALID_VALUE: Self = Self(0x001C);
    const COMMON: u16 = 0x00FF;

    /// A status of the SA.
    pub const fn refusal(refusal: SaRefusal) -> Self {
        Self((refusal.code() as u16) << 8)
    }

    /// What the status means to the one who asked. BUSY goes before everything else; what the core
    /// cannot act on (a redirection, a code that is reserved) is [`SaError::Unusable`].
    pub const fn result(self) -> Result<(), SaError> {
        if self.0 == 0 {
            return Ok(());
        }
        if self.0 & Self::BUSY.0 != 0 {
            return Err(SaError::Busy);
        }
        if self.0 & Self::COMMON != 0 {
            return Err(SaError::Unusable);
        }
        match SaRefusal::from_code((self.0 >> 8) as u8) {
            Some(refusal) => Err(SaError::Refused(refusal)),
            None => Err(SaError::Unusable),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#06x})", self.0)
    }
}

/// The header of every MAD (IBA 13.4.2).
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct MadHeader {
    /// BaseVersion.
    pub base_version: u8,
    /// MgmtClass.
    pub class: u8,
    /// ClassVersion.
    pub class_version: u8,
    /// R (1 bit), Method (7).
    pub method: u8,
    /// Status.
    pub status: U16,
    /// ClassSpecific.
    pub class_specific: U16,
    /// TransactionID.
    pub transaction: U64,
    /// AttributeID.
    pub attribute: U16,
    /// Reserved.
    pub reserved: U16,
    /// AttributeModifier.
    pub modifier: U32,
}

const_assert_eq!(size_of::<MadHeader>(), 24);
const_assert_eq!(offset_of!(MadHeader, method), 3);
const_assert_eq!(offset_of!(MadHeader, status), 4);
const_assert_eq!(offset_of!(MadHeader, transaction), 8);
const_assert_eq!(offset_of!(MadHeader, attribute), 16);
const_assert_eq!(offset_of!(MadHeader, modifier), 20);

/// The header of the reliable multi-packet protocol (IBA 13.6.2.1), inactive in all that is sent
/// here.
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct RmppHeader {
    /// RMPPVersion.
    pub version: u8,
    /// RMPPType.
    pub kind: u8,
    /// RRespTime (5 bits), RMPPFlags (3): Active is bit 0.
    pub time_flags: u8,
    /// RMPPStatus.
    pub status: u8,
    /// SegmentNumber or the like.
    pub data1: U32,
    /// PayloadLength or the like.
    pub data2: U32,
}

const_assert_eq!(size_of::<RmppHeader>(), 12);

impl RmppHeader {
    const ACTIVE: u8 = 1 << 0;
}

/// A MAD for or from the SA (IBA 15.2.1.1).
#[derive(
    Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned,
)]
#[repr(C)]
pub struct SaMad {
    /// The common header.
    pub header: MadHeader,
    /// The header of the reliable multi-packet protocol.
    pub rmpp: RmppHeader,
    /// SM_Key.
    pub sm_key: U64,
    /// AttributeOffset, in units of 8 bytes.
    pub attribute_offset: U16,
    /// Reserved.
    pub reserved: U16,
    /// ComponentMask.
    pub component_mask: U64,
    /// SubnetAdminData.
    pub data: [u8; SA_DATA_BYTES],
}

const_assert_eq!(size_of::<SaMad>(), MAD_BYTES);
const_assert_eq!(offset_of!(SaMad, rmpp), 24);
const_assert_eq!(offset_of!(SaMad, sm_key), 36);
const_assert_eq!(offset_of!(SaMad, attribute_offset), 44);
const_assert_eq!(offset_of!(SaMad, component_mask), 48);
const_assert_eq!(offset_of!(SaMad, data), 56);

/// Why bytes are not a MAD that the SA or its client understands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ParseError {
    /// Not 256 bytes.
    Length,
    /// A BaseVersion other than 1.
    BaseVersion,
    /// A MgmtClass other than SubnAdm.
    Class,
    /// A ClassVersion other than 2.
    ClassVersion,
    /// A method that is not used here.
    Method,
    /// A segment of the reliable multi-packet protocol.
    Segment,
}

/// A MAD of the SA class whose method is known.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The bytes.
    pub mad: &'a SaMad,
    /// The method.
    pub method: Method,
}

/// Checks length, versions, class and method.
pub fn parse(bytes: &[u8]) -> Result<Message<'_>, ParseError> {
    let mad = SaMad::ref_from_bytes(bytes).map_err(|_| ParseError::Length)?;
    if mad.header.base_version != BASE_VERSION {
        return Err(ParseError::BaseVersion);
    }
    if mad.header.class != SA_CLASS {
        return Err(ParseError::Class);
    }
    if mad.header.class_version != SA_CLASS_VERSION {
        return Err(ParseError::ClassVersion);
    }
    let method = Method::from_code(mad.header.method).ok_or(ParseError::Method)?;
    // IBA 13.6.2.1: with Active clear the rest of the RMPP header is not valid and not looked at.
    if mad.rmpp.time_flags & RmppHeader::ACTIVE != 0 {
        return Err(ParseError::Segment);
    }
    Ok(Message { mad, method })
}

impl SaMad {
    /// A request with a record in its data area.
    pub fn request<R: IntoBytes + Immutable>(
        method: Method,
        attribute: Attribute,
        transaction: u64,
        component_mask: u64,
        record: &R,
    ) -> Self {
        let mut mad = Self {
            header: MadHeader {
                base_version: BASE_VERSION,
                class: SA_CLASS,
                class_version: SA_CLASS_VERSION,
                method: method.code(),
                status: U16::ZERO,
                class_specific: U16::ZERO,
                transaction: U64::new(transaction),
                attribute: U16::new(attribute.code()),
                reserved: U16::ZERO,
                modifier: U32::ZERO,
            },
            component_mask: U64::new(component_mask),
            ..Self::new_zeroed()
        };
        mad.set_record(record);
        mad
    }

    /// The answer to this MAD with a record. Everything that the header of the request says, the
    /// TransactionID above all, is repeated (IBA 13.4.6.4).
    pub fn answer<R: IntoBytes + Immutable>(&self, attribute: Attribute, record: &R) -> Self {
        let mut mad = self.refusal(Status::SUCCESS);
        mad.attribute_offset = U16::new(attribute.offset());
        mad.data = [0; SA_DATA_BYTES];
        mad.set_record(record);
        mad
    }

    /// The answer to this MAD with a status and the data as it came.
    pub fn refusal(&self, status: Status) -> Self {
        let mut mad = *self;
        // IBA 15.2.2: Get and Set share one response, every other method has its own.
        mad.header.method = match Method::from_code(self.header.method) {
            Some(Method::Set) => Method::GetResponse.code(),
            Some(Method::Get | Method::Delete | Method::GetResponse | Method::DeleteResponse)
            | None => self.header.method | METHOD_RESPONSE,
        };
        mad.header.status = U16::new(status.0);
        mad
    }

    fn set_record<R: IntoBytes + Immutable>(&mut self, record: &R) {
        const { assert!(size_of::<R>() <= SA_DATA_BYTES) };
        self.data[..size_of::<R>()].copy_from_slice(record.as_bytes());
    }

    /// The record at the start of the data area.
    pub fn record<R: FromBytes>(&self) -> R {
        const { assert!(size_of::<R>() <= SA_DATA_BYTES) };
        // The assertion above rules the error out.
        R::read_from_prefix(&self.data).map_or_else(|_| R::new_zeroed(), |(record, _)| record)
    }

    /// The bytes to send.
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        zerocopy::transmute!(*self)
    }

    /// The status.
    pub fn status(&self) -> Status {
        Status(self.header.status.get())
    }

    /// The attribute; `None` for one that is not used here.
    pub fn attribute(&self) -> Option<Attribute> {
        Attribute::from_code(self.header.attribute.get())
    }
}

#[cfg(test)]
mod tests;
