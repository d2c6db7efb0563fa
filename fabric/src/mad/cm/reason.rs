//! Why a REJ was sent (IBA 12.6.7.2).

/// Defines the reasons once, with their codes.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Why a message was rejected (IBA 12.6.7.2, table 109).
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[repr(u16)]
        pub enum RejectReason {
            $($(#[$doc])* $name = $code,)*
        }

        impl RejectReason {
            /// All of them, in the order of codes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// `None` for a reserved code.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    /// No queue pair is free.
    NoQueuePair = 1,
    /// No end-to-end context is free.
    NoEndToEndContext = 2,
    /// Something else is not free.
    NoResources = 3,
    /// No answer came in time.
    Timeout = 4,
    /// The request is not supported.
    UnsupportedRequest = 5,
    /// The communication id names nothing.
    InvalidCommId = 6,
    /// Local and remote communication id do not belong together.
    InvalidCommInstance = 7,
    /// Nobody listens for the service.
    InvalidServiceId = 8,
    /// The transport service type is not supported.
    InvalidTransport = 9,
    /// The sender's queue pair is thought to be connected already.
    StaleConnection = 10,
    /// There is no reliable datagram channel of this number.
    NoReliableDatagramChannel = 11,
    /// The primary remote GID is not one of this port's.
    InvalidGid = 12,
    /// The primary remote LID is not one of this port's.
    InvalidLid = 13,
    /// The primary service level.
    InvalidServiceLevel = 14,
    /// The primary traffic class.
    InvalidTrafficClass = 15,
    /// The primary hop limit.
    InvalidHopLimit = 16,
    /// The primary packet rate.
    InvalidPacketRate = 17,
    /// The alternate remote GID.
    InvalidAlternateGid = 18,
    /// The alternate remote LID.
    InvalidAlternateLid = 19,
    /// The alternate service level.
    InvalidAlternateServiceLevel = 20,
    /// The alternate traffic class.
    InvalidAlternateTrafficClass = 21,
    /// The alternate hop limit.
    InvalidAlternateHopLimit = 22,
    /// The alternate packet rate.
    InvalidAlternatePacketRate = 23,
    /// Ask the communication manager that the REJ names.
    CmRedirect = 24,
    /// Ask the port that the REJ names.
    PortRedirect = 25,
    /// The path MTU.
    InvalidMtu = 26,
    /// Too few responder resources.
    InsufficientResponderResources = 27,
    /// The consumer does not want the connection.
    ConsumerReject = 28,
    /// The RNR retry count.
    InvalidRnrRetryCount = 29,
    /// The sender's communication id is in use already.
    DuplicateCommId = 30,
    /// The class version.
    InvalidClassVersion = 31,
    /// The primary flow label.
    InvalidFlowLabel = 32,
    /// The alternate flow label.
    InvalidAlternateFlowLabel = 33,
}

impl RejectReason {
    /// The code.
    pub const fn code(self) -> u16 {
        self as u16
    }
}
