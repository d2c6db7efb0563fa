//! Software InfiniBand.
