//! What both halves take the layout of `c/ofed/ofed.h` to be: the C compiler asserts the same
//! numbers there.

use static_assertions::const_assert_eq;
use sys_bindings as sys;

const_assert_eq!(size_of::<sys::kpi_device_attributes>(), 40);
const_assert_eq!(size_of::<sys::kpi_port_attributes>(), 24);
const_assert_eq!(size_of::<sys::kpi_segment>(), 16);
const_assert_eq!(size_of::<sys::kpi_completion>(), 32);
const_assert_eq!(size_of::<sys::kpi_qp_config>(), 56);
const_assert_eq!(size_of::<sys::kpi_address>(), 28);
const_assert_eq!(size_of::<sys::kpi_datagram>(), 24);
const_assert_eq!(size_of::<sys::kpi_path>(), 48);
const_assert_eq!(size_of::<sys::kpi_group>(), 52);
const_assert_eq!(size_of::<sys::kpi_cm_request>(), 32);
const_assert_eq!(size_of::<sys::kpi_cm_event>(), 16);
const_assert_eq!(size_of::<sys::kpi_cm_connect>(), 80);
const_assert_eq!(size_of::<sys::kpi_cm_reply>(), 24);
