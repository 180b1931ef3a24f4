"""A pulse runs through a bent waveguide; rank 0 prints the flux behind the bend."""

import meep as mp

dielectric = mp.Medium(epsilon=12)
simulation = mp.Simulation(
    cell_size=mp.Vector3(16, 16, 0),
    boundary_layers=[mp.PML(1.0)],
    geometry=[
        mp.Block(mp.Vector3(12, 1, mp.inf), center=mp.Vector3(-2.5, -3.5), material=dielectric),
        mp.Block(mp.Vector3(1, 12, mp.inf), center=mp.Vector3(3.5, 2), material=dielectric),
    ],
    sources=[
        mp.Source(
            mp.GaussianSource(0.15, fwidth=0.1),
            component=mp.Ez,
            center=mp.Vector3(-7, -3.5),
            size=mp.Vector3(0, 1),
        )
    ],
    resolution=10,
)
region = mp.FluxRegion(center=mp.Vector3(3.5, 6), size=mp.Vector3(2, 0))
flux = simulation.add_flux(0.15, 0.1, 5, region)
simulation.run(until=100)
fluxes = mp.get_fluxes(flux)
if mp.am_master():
    print("result", *(f"{value:.8e}" for value in fluxes), flush=True)
