//! The environment that describes the world to processes.

use wireup_impi_core::world::ImpiJob;

/// Returns the variables of the processes on a client's first host; on the others the host's color differs.
pub(super) fn variables(world: &ImpiJob, client: usize) -> Vec<(&'static str, String)> {
    let limits = &world.limits;
    let own = &world.clients[client];
    let list = |sizes: &mut dyn Iterator<Item = usize>| {
        let sizes: Vec<String> = sizes.map(|size| size.to_string()).collect();
        sizes.join(",")
    };
    vec![
        (
            "IMPI_VERSION",
            format!("{}.{}", world.version.0, world.version.1),
        ),
        ("IMPI_WORLD_SIZE", world.procs.len().to_string()),
        ("IMPI_WORLD_FIRST", own.first.to_string()),
        ("IMPI_CLIENT_SIZE", world.clients.len().to_string()),
        ("IMPI_CLIENT_COLOR", client.to_string()),
        (
            "IMPI_CLIENT_NPROCS",
            list(&mut world.clients.iter().map(|client| client.size)),
        ),
        ("IMPI_HOST_SIZE", world.hosts.len().to_string()),
        ("IMPI_HOST_COLOR", world.first_host(client).to_string()),
        (
            "IMPI_HOST_NPROCS",
            list(&mut world.hosts.iter().map(|host| host.size)),
        ),
        ("IMPI_PK_MAXDATALEN", limits.data_length.to_string()),
        ("IMPI_PK_ACKMARK", limits.ack_mark.to_string()),
        ("IMPI_PK_HIWATER", limits.high_water.to_string()),
        ("IMPI_TAG_UB", limits.tag_upper_bound.to_string()),
        ("IMPI_COLL_XSIZE", limits.crossover_size.to_string()),
        ("IMPI_COLL_MAXLINEAR", limits.max_linear.to_string()),
    ]
}
