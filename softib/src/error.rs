//! Why something was refused. Error numbers exist at the edge to C only.

use alloc::collections::TryReserveError;

use fabric::subnet::SubnetError;
use fabric::{AttachError, CreateError, DestroyError, ManagementError, ModifyError, PostError};

/// Why something was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Error {
    /// Others use it.
    Busy,
    /// An argument is out of its range, or there is no such object.
    Invalid,
    /// No memory, or a queue is full.
    NoMemory,
}

impl From<TryReserveError> for Error {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

impl From<CreateError> for Error {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Invalid | CreateError::Unknown => Self::Invalid,
            CreateError::OutOfMemory | CreateError::TooMany => Self::NoMemory,
        }
    }
}

impl From<DestroyError> for Error {
    fn from(error: DestroyError) -> Self {
        match error {
            DestroyError::Busy => Self::Busy,
            DestroyError::Unknown => Self::Invalid,
        }
    }
}

impl From<ModifyError> for Error {
    fn from(error: ModifyError) -> Self {
        match error {
            ModifyError::IllegalTransition
            | ModifyError::InvalidAttribute
            | ModifyError::InvalidPkeyIndex
            | ModifyError::Unknown => Self::Invalid,
        }
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        match error {
            PostError::QueueFull => Self::NoMemory,
            PostError::HasSharedQueue
            | PostError::UnknownHandle
            | PostError::UnknownQp
            | PostError::WrongService
            | PostError::WrongState => Self::Invalid,
        }
    }
}

impl From<AttachError> for Error {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::OutOfMemory => Self::NoMemory,
            AttachError::NotAttached | AttachError::Unknown => Self::Invalid,
        }
    }
}

impl From<ManagementError> for Error {
    fn from(error: ManagementError) -> Self {
        match error {
            ManagementError::OutOfMemory => Self::NoMemory,
            ManagementError::LidInUse
            | ManagementError::TableTooSmall
            | ManagementError::Unknown => Self::Invalid,
        }
    }
}

impl From<SubnetError> for Error {
    fn from(error: SubnetError) -> Self {
        match error {
            SubnetError::Gsi(error) => error.into(),
            SubnetError::Manager(error) => error.into(),
            SubnetError::Fabric(error) => error.into(),
        }
    }
}

impl From<fabric::sm::SmError> for Error {
    fn from(error: fabric::sm::SmError) -> Self {
        use fabric::sm::SmError;
        match error {
            SmError::OutOfMemory | SmError::TableFull | SmError::LidsExhausted => Self::NoMemory,
            SmError::DuplicateGuid
            | SmError::DuplicateGid
            | SmError::MulticastGid
            | SmError::LidInUse
            | SmError::UnknownPort
            | SmError::UnknownPartition
            | SmError::Exists => Self::Invalid,
        }
    }
}
