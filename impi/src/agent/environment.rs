//! The environment that describes the world to processes.

use wireup_impi_core::world::World;

/// The variables of a client's processes.
pub(super) fn of(world: &World, client: usize) -> Vec<(&'static str, String)> {
    let limits = &world.limits;
    let own = &world.clients[client];
    let host = world.hosts.partition_point(|host| host.client < client);
    let sizes: Vec<String> = world
        .clients
        .iter()
        .map(|client| client.size.to_string())
        .collect();
    vec![
        (
            "IMPI_VERSION",
            format!("{}.{}", world.version.0, world.version.1),
        ),
        ("IMPI_WORLD_SIZE", world.procs.len().to_string()),
        ("IMPI_WORLD_FIRST", own.first.to_string()),
        ("IMPI_CLIENT_SIZE", world.clients.len().to_string()),
        ("IMPI_CLIENT_COLOR", client.to_string()),
        ("IMPI_CLIENT_NPROCS", sizes.join(",")),
        ("IMPI_HOST_SIZE", world.hosts.len().to_string()),
        ("IMPI_HOST_COLOR", host.to_string()),
        ("IMPI_PK_MAXDATALEN", limits.data_length.to_string()),
        ("IMPI_PK_ACKMARK", limits.ack_mark.to_string()),
        ("IMPI_PK_HIWATER", limits.high_water.to_string()),
        ("IMPI_TAG_UB", limits.tag_upper_bound.to_string()),
        ("IMPI_COLL_XSIZE", limits.crossover_size.to_string()),
        ("IMPI_COLL_MAXLINEAR", limits.max_linear.to_string()),
    ]
}
