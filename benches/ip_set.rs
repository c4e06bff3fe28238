//! The cost of finding an address among few, many and very many networks.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use criterion::{Criterion, criterion_group, criterion_main};
use ipnet::IpNet;
use sluicegate_base::ip_set::IpSet;

/// Numbers that a branch predictor cannot learn.
fn next(number: &mut u64) -> u64 {
    *number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *number >> 16
}

/// `count` networks as in block lists: single addresses and small networks, a quarter of them IPv6.
fn networks(count: usize) -> Vec<IpNet> {
    let mut number = 1;
    let one = |place: usize| {
        let bits = next(&mut number);
        let net = match place % 4 {
            0 => IpNet::new(IpAddr::V6(Ipv6Addr::from_bits(0x2001 << 112 | u128::from(bits) << 64)), 64),
            1 => IpNet::new(IpAddr::V4(Ipv4Addr::from_bits(bits as u32)), 24),
            _ => IpNet::new(IpAddr::V4(Ipv4Addr::from_bits(bits as u32)), 32),
        };
        net.unwrap().trunc()
    };
    (0..count).map(one).collect()
}

fn look_ups(criterion: &mut Criterion) {
    for count in [8, 100, 100_000, 1_000_000] {
        let networks = networks(count);
        let set = IpSet::new(&networks);
        let mut number = 7;
        criterion.bench_function(&format!("strangers among {count} networks"), |bencher| {
            bencher
                .iter(|| set.contains(black_box(IpAddr::V4(Ipv4Addr::from_bits(next(&mut number) as u32)))));
        });
        criterion.bench_function(&format!("members of {count} networks"), |bencher| {
            bencher.iter(|| {
                let member = networks[next(&mut number) as usize % count].addr();
                assert!(set.contains(black_box(member)));
            });
        });
    }
}

criterion_group!(benches, look_ups);
criterion_main!(benches);
