/* Cartesian and graph topologies of communicators with members in several clients. Processes keep their order. */
#include <stdlib.h>

#include "preload.h"

static struct cartesian *make_cartesian(int dimensions, const int sizes[], const int periods[])
{
    struct cartesian *cartesian = allocate(sizeof(*cartesian));

    *cartesian = (struct cartesian){dimensions, copy_numbers(sizes, dimensions), copy_numbers(periods, dimensions)};
    for (int i = 0; i < dimensions; i++) {
        cartesian->periods[i] = periods[i] != 0;
    }
    return cartesian;
}

static int count_edges(int nodes, const int index[])
{
    return nodes == 0 ? 0 : index[nodes - 1];
}

static struct graph *make_graph(int nodes, const int index[], const int edges[])
{
    struct graph *graph = allocate(sizeof(*graph));

    *graph = (struct graph){nodes, copy_numbers(index, nodes), copy_numbers(edges, count_edges(nodes, index))};
    return graph;
}

void copy_topology(const struct impi_comm *from, struct impi_comm *to)
{
    const struct cartesian *cartesian = from->cartesian;
    const struct graph *graph = from->graph;

    to->cartesian = cartesian == NULL ? NULL : make_cartesian(cartesian->dimensions, cartesian->sizes, cartesian->periods);
    to->graph = graph == NULL ? NULL : make_graph(graph->nodes, graph->index, graph->edges);
}

void free_topology(struct impi_comm *impi_comm)
{
    if (impi_comm->cartesian != NULL) {
        free(impi_comm->cartesian->sizes);
        free(impi_comm->cartesian->periods);
    }
    if (impi_comm->graph != NULL) {
        free(impi_comm->graph->index);
        free(impi_comm->graph->edges);
    }
    free(impi_comm->cartesian);
    free(impi_comm->graph);
}

/* ---- Cartesian topologies ---- */

/* Gives a communicator that was split off its topology. */
static int add_cartesian(MPI_Comm *comm, int dimensions, const int sizes[], const int periods[])
{
    struct impi_comm *impi_comm = *comm == MPI_COMM_NULL ? NULL : find_impi_comm(*comm);
    MPI_Comm plain = *comm;

    if (impi_comm != NULL) {
        impi_comm->cartesian = make_cartesian(dimensions, sizes, periods);
    } else if (plain != MPI_COMM_NULL) {
        const int error = PMPI(Cart_create)(plain, dimensions, sizes, periods, 0, comm);
        PMPI(Comm_free)(&plain);
        return error;
    }
    return MPI_SUCCESS;
}

/* Returns the topology of a communicator of several clients. `error` is the result for one without. */
static const struct cartesian *find_cartesian(MPI_Comm comm, bool *is_impi_comm, int *error)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    *is_impi_comm = impi_comm != NULL;
    *error = impi_comm != NULL && impi_comm->cartesian == NULL ? raise_error(comm, MPI_ERR_TOPOLOGY) : MPI_SUCCESS;
    return impi_comm == NULL ? NULL : impi_comm->cartesian;
}

static void coordinates_of(const struct cartesian *cartesian, int rank, int coordinates[])
{
    for (int i = cartesian->dimensions - 1; i >= 0; i--) {
        coordinates[i] = rank % cartesian->sizes[i];
        rank /= cartesian->sizes[i];
    }
}

/* Returns the rank at coordinates, or MPI_PROC_NULL outside. */
static int rank_at(const struct cartesian *cartesian, const int coordinates[])
{
    int rank = 0;

    for (int i = 0; i < cartesian->dimensions; i++) {
        const int size = cartesian->sizes[i];
        int at = coordinates[i];
        if (cartesian->periods[i]) {
            at = (at % size + size) % size;
        }
        if (at < 0 || at >= size) {
            return MPI_PROC_NULL;
        }
        rank = rank * size + at;
    }
    return rank;
}

int MPI_Cart_create(MPI_Comm comm, int dimensions, const int sizes[], const int periods[], int reorder, MPI_Comm *created)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);
    int64_t count = 1;

    if (impi_comm == NULL) {
        return PMPI(Cart_create)(comm, dimensions, sizes, periods, reorder, created);
    }
    for (int i = 0; i < dimensions; i++) {
        count = sizes[i] <= 0 || count > impi_comm->size ? -1 : count * sizes[i];
    }
    if (dimensions < 0 || count < 0 || count > impi_comm->size) {
        return raise_error(comm, MPI_ERR_DIMS);
    }
    const int error = MPI_Comm_split(comm, impi_comm->rank < count ? 0 : MPI_UNDEFINED, impi_comm->rank, created);
    return error == MPI_SUCCESS ? add_cartesian(created, dimensions, sizes, periods) : error;
}

int MPI_Cart_sub(MPI_Comm comm, const int remains[], MPI_Comm *created)
{
    bool is_impi_comm;
    int error;
    const struct cartesian *cartesian = find_cartesian(comm, &is_impi_comm, &error);

    if (!is_impi_comm || error != MPI_SUCCESS) {
        return is_impi_comm ? error : PMPI(Cart_sub)(comm, remains, created);
    }
    const size_t bytes = sizeof(int) * (size_t)cartesian->dimensions;
    int *coordinates = allocate(bytes);
    int *sizes = allocate(bytes);
    int *periods = allocate(bytes);
    const int rank = find_impi_comm(comm)->rank;
    int dimensions = 0;
    int color = 0;
    coordinates_of(cartesian, rank, coordinates);
    for (int i = 0; i < cartesian->dimensions; i++) {
        if (remains[i]) {
            sizes[dimensions] = cartesian->sizes[i];
            periods[dimensions++] = cartesian->periods[i];
        } else {
            color = color * cartesian->sizes[i] + coordinates[i];
        }
    }
    error = MPI_Comm_split(comm, color, rank, created);
    error = error == MPI_SUCCESS ? add_cartesian(created, dimensions, sizes, periods) : error;
    free(coordinates);
    free(sizes);
    free(periods);
    return error;
}

int MPI_Cartdim_get(MPI_Comm comm, int *dimensions)
{
    bool is_impi_comm;
    int error;
    const struct cartesian *cartesian = find_cartesian(comm, &is_impi_comm, &error);

    if (cartesian == NULL) {
        return is_impi_comm ? error : PMPI(Cartdim_get)(comm, dimensions);
    }
    *dimensions = cartesian->dimensions;
    return MPI_SUCCESS;
}

int MPI_Cart_get(MPI_Comm comm, int room, int sizes[], int periods[], int coordinates[])
{
    bool is_impi_comm;
    int error;
    const struct cartesian *cartesian = find_cartesian(comm, &is_impi_comm, &error);

    if (cartesian == NULL) {
        return is_impi_comm ? error : PMPI(Cart_get)(comm, room, sizes, periods, coordinates);
    }
    int *own = allocate(sizeof(int) * (size_t)cartesian->dimensions);
    coordinates_of(cartesian, find_impi_comm(comm)->rank, own);
    for (int i = 0; i < cartesian->dimensions && i < room; i++) {
        sizes[i] = cartesian->sizes[i];
        periods[i] = cartesian->periods[i];
        coordinates[i] = own[i];
    }
    free(own);
    return MPI_SUCCESS;
}

int MPI_Cart_rank(MPI_Comm comm, const int coordinates[], int *rank)
{
    bool is_impi_comm;
    int error;
    const struct cartesian *cartesian = find_cartesian(comm, &is_impi_comm, &error);

    if (cartesian == NULL) {
        return is_impi_comm ? error : PMPI(Cart_rank)(comm, coordinates, rank);
    }
    *rank = rank_at(cartesian, coordinates);
    return *rank == MPI_PROC_NULL ? raise_error(comm, MPI_ERR_ARG) : MPI_SUCCESS;
}

int MPI_Cart_coords(MPI_Comm comm, int rank, int room, int coordinates[])
{
    bool is_impi_comm;
    int error;
    const struct cartesian *cartesian = find_cartesian(comm, &is_impi_comm, &error);

    if (cartesian == NULL) {
        return is_impi_comm ? error : PMPI(Cart_coords)(comm, rank, room, coordinates);
    }
    if (rank < 0 || rank >= find_impi_comm(comm)->size || room < cartesian->dimensions) {
        return raise_error(comm, room < cartesian->dimensions ? MPI_ERR_ARG : MPI_ERR_RANK);
    }
    coordinates_of(cartesian, rank, coordinates);
    return MPI_SUCCESS;
}

int MPI_Cart_shift(MPI_Comm comm, int direction, int distance, int *source, int *destination)
{
    bool is_impi_comm;
    int error;
    const struct cartesian *cartesian = find_cartesian(comm, &is_impi_comm, &error);

    if (cartesian == NULL) {
        return is_impi_comm ? error : PMPI(Cart_shift)(comm, direction, distance, source, destination);
    }
    if (direction < 0 || direction >= cartesian->dimensions) {
        return raise_error(comm, MPI_ERR_DIMS);
    }
    int *coordinates = allocate(sizeof(int) * (size_t)cartesian->dimensions);
    coordinates_of(cartesian, find_impi_comm(comm)->rank, coordinates);
    coordinates[direction] += distance;
    *destination = rank_at(cartesian, coordinates);
    coordinates[direction] -= 2 * distance;
    *source = rank_at(cartesian, coordinates);
    free(coordinates);
    return MPI_SUCCESS;
}

int MPI_Cart_map(MPI_Comm comm, int dimensions, const int sizes[], const int periods[], int *rank)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);
    int64_t count = 1;

    if (impi_comm == NULL) {
        return PMPI(Cart_map)(comm, dimensions, sizes, periods, rank);
    }
    for (int i = 0; i < dimensions; i++) {
        count *= sizes[i];
    }
    *rank = impi_comm->rank < count ? impi_comm->rank : MPI_UNDEFINED;
    return MPI_SUCCESS;
}

/* ---- Graphs ---- */

/* Returns the graph of a communicator of several clients. `error` is the result for one without. */
static const struct graph *find_graph(MPI_Comm comm, bool *is_impi_comm, int *error)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    *is_impi_comm = impi_comm != NULL;
    *error = impi_comm != NULL && impi_comm->graph == NULL ? raise_error(comm, MPI_ERR_TOPOLOGY) : MPI_SUCCESS;
    return impi_comm == NULL ? NULL : impi_comm->graph;
}

static int first_edge(const struct graph *graph, int node)
{
    return node == 0 ? 0 : graph->index[node - 1];
}

static bool is_graph(int size, int nodes, const int index[], const int edges[])
{
    if (nodes < 0 || nodes > size) {
        return false;
    }
    for (int node = 0; node < nodes; node++) {
        if (index[node] < (node == 0 ? 0 : index[node - 1])) {
            return false;
        }
    }
    for (int i = 0; i < count_edges(nodes, index); i++) {
        if (edges[i] < 0 || edges[i] >= nodes) {
            return false;
        }
    }
    return true;
}

int MPI_Graph_create(MPI_Comm comm, int nodes, const int index[], const int edges[], int reorder, MPI_Comm *created)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL) {
        return PMPI(Graph_create)(comm, nodes, index, edges, reorder, created);
    }
    if (!is_graph(impi_comm->size, nodes, index, edges)) {
        return raise_error(comm, MPI_ERR_ARG);
    }
    const int error = MPI_Comm_split(comm, impi_comm->rank < nodes ? 0 : MPI_UNDEFINED, impi_comm->rank, created);
    if (error != MPI_SUCCESS || *created == MPI_COMM_NULL) {
        return error;
    }
    struct impi_comm *part = find_impi_comm(*created);
    if (part == NULL) {
        MPI_Comm plain = *created;
        const int code = PMPI(Graph_create)(plain, nodes, index, edges, 0, created);
        PMPI(Comm_free)(&plain);
        return code;
    }
    part->graph = make_graph(nodes, index, edges);
    return MPI_SUCCESS;
}

int MPI_Graphdims_get(MPI_Comm comm, int *nodes, int *edges)
{
    bool is_impi_comm;
    int error;
    const struct graph *graph = find_graph(comm, &is_impi_comm, &error);

    if (graph == NULL) {
        return is_impi_comm ? error : PMPI(Graphdims_get)(comm, nodes, edges);
    }
    *nodes = graph->nodes;
    *edges = count_edges(graph->nodes, graph->index);
    return MPI_SUCCESS;
}

int MPI_Graph_get(MPI_Comm comm, int index_room, int edge_room, int index[], int edges[])
{
    bool is_impi_comm;
    int error;
    const struct graph *graph = find_graph(comm, &is_impi_comm, &error);

    if (graph == NULL) {
        return is_impi_comm ? error : PMPI(Graph_get)(comm, index_room, edge_room, index, edges);
    }
    for (int i = 0; i < graph->nodes && i < index_room; i++) {
        index[i] = graph->index[i];
    }
    for (int i = 0; i < count_edges(graph->nodes, graph->index) && i < edge_room; i++) {
        edges[i] = graph->edges[i];
    }
    return MPI_SUCCESS;
}

int MPI_Graph_neighbors_count(MPI_Comm comm, int rank, int *count)
{
    bool is_impi_comm;
    int error;
    const struct graph *graph = find_graph(comm, &is_impi_comm, &error);

    if (graph == NULL) {
        return is_impi_comm ? error : PMPI(Graph_neighbors_count)(comm, rank, count);
    }
    if (rank < 0 || rank >= graph->nodes) {
        return raise_error(comm, MPI_ERR_RANK);
    }
    *count = graph->index[rank] - first_edge(graph, rank);
    return MPI_SUCCESS;
}

int MPI_Graph_neighbors(MPI_Comm comm, int rank, int room, int neighbors[])
{
    bool is_impi_comm;
    int error;
    const struct graph *graph = find_graph(comm, &is_impi_comm, &error);

    if (graph == NULL) {
        return is_impi_comm ? error : PMPI(Graph_neighbors)(comm, rank, room, neighbors);
    }
    if (rank < 0 || rank >= graph->nodes) {
        return raise_error(comm, MPI_ERR_RANK);
    }
    const int first = first_edge(graph, rank);
    for (int i = first; i < graph->index[rank] && i - first < room; i++) {
        neighbors[i - first] = graph->edges[i];
    }
    return MPI_SUCCESS;
}

int MPI_Graph_map(MPI_Comm comm, int nodes, const int index[], const int edges[], int *rank)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL) {
        return PMPI(Graph_map)(comm, nodes, index, edges, rank);
    }
    *rank = impi_comm->rank < nodes ? impi_comm->rank : MPI_UNDEFINED;
    return MPI_SUCCESS;
}

int MPI_Topo_test(MPI_Comm comm, int *kind)
{
    const struct impi_comm *impi_comm = find_impi_comm(comm);

    if (impi_comm == NULL) {
        return PMPI(Topo_test)(comm, kind);
    }
    *kind = impi_comm->cartesian != NULL ? MPI_CART : impi_comm->graph != NULL ? MPI_GRAPH : MPI_UNDEFINED;
    return MPI_SUCCESS;
}
