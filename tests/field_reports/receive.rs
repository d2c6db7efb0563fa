//! Reports B28 and B29: addresses, and what a received frame is taken for.

use ipoib_rs::counters::{Counter, DropReason};
use ipoib_rs::packet::{Cast, Delivery};
use ipoib_rs::wire::{EtherType, LINK_ADDRESS_BYTES, LinkAddress};
use zerocopy::IntoBytes;

use crate::common::*;
use crate::scene::*;

/// How `frame` is delivered, and what of it.
fn delivered(frame: &[u8], has_grh: bool) -> Option<(Vec<u8>, Delivery)> {
    let mut scene = Scene::joined();
    scene.receive(frame, has_grh);
    let delivered = scene.adapter().delivered.pop();
    scene.finish();
    delivered
}

#[test]
fn b28_the_link_layer_address_has_20_bytes_flags_qpn_and_gid() {
    let scene = Scene::joined();
    let address = scene.interface().address();
    let mut expected = vec![0, 0, 0, 0x48];
    expected.extend(OWN_GID.0);
    assert_eq!(address.as_bytes(), expected);
    assert_eq!(LinkAddress::from_bytes(&expected), Some(address));
    scene.finish();
}

#[test]
fn b28_no_other_length_is_taken_for_an_address() {
    for length in [0, 6, 14, 19, 21] {
        assert_eq!(LinkAddress::from_bytes(&vec![0; length]), None, "{length}");
    }
}

#[test]
fn b28_the_broadcast_address_holds_scope_and_pkey() {
    let mut port = port();
    port.partition = partition(0x0123, 4);
    let mut scene = Scene::attach_with(port, ipoib_rs::limits::Limits::DEFAULT);
    scene.admin_up();
    let broadcast = scene.interface().broadcast().unwrap();
    let bytes = group_bytes(broadcast);
    assert_eq!(bytes.len(), LINK_ADDRESS_BYTES);
    let expected = [0, 0xFF, 0xFF, 0xFF, 0xFF, 0x12, 0x40, 0x1B, 0x81, 0x23];
    assert_eq!(bytes[..10], expected);
    scene.finish();
}

#[test]
fn b29_the_destination_gid_of_the_grh_decides_the_cast() {
    for (destination, cast) in [
        (mgid("255.255.255.255").gid(), Cast::Broadcast),
        (mgid("224.0.0.22").gid(), Cast::Multicast),
        (mgid("ff02::1").gid(), Cast::Multicast),
        (OWN_GID, Cast::Unicast),
    ] {
        let frame = frame(Some(destination), EtherType::IPV4, b"payload");
        let expected = Delivery { protocol: EtherType::IPV4, cast };
        assert_eq!(delivered(&frame, true), Some((b"payload".to_vec(), expected)));
    }
}

#[test]
fn b29_without_a_grh_garbage_in_its_place_is_not_looked_at() {
    let mut frame = frame(None, EtherType::IPV6, b"payload");
    frame[..40].fill(0xFF);
    let expected = Delivery { protocol: EtherType::IPV6, cast: Cast::Unicast };
    assert_eq!(delivered(&frame, false), Some((b"payload".to_vec(), expected)));
}

#[test]
fn b29_a_frame_that_is_too_short_is_counted_and_its_buffer_posted_again() {
    let mut scene = Scene::joined();
    let posted = scene.adapter().receives_posted;
    scene.receive(&[0; 43], true);
    assert_eq!(scene.dropped(DropReason::FrameTooShort), 1);
    assert!(scene.adapter().delivered.is_empty());
    assert_eq!(scene.adapter().receives_posted, posted);
    scene.finish();
}

#[test]
fn b29_the_own_multicast_does_not_come_back() {
    let mut scene = Scene::joined();
    let frame = frame(Some(mgid("255.255.255.255").gid()), EtherType::ARP, &[0; 56]);
    scene.receive_from(&frame, true, 1, OWN_QPN);
    assert_eq!(scene.dropped(DropReason::OwnMulticast), 1);
    // The same number on another port is somebody else.
    scene.receive_from(&frame, true, 0x101, OWN_QPN);
    assert_eq!(scene.adapter().delivered.len(), 1);
    assert_eq!(scene.counted(Counter::MulticastReceived), 1);
    scene.finish();
}
