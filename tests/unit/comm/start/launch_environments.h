// SPDX-License-Identifier: Apache-2.0
// What launchers put into the environment of their processes, as it was found there, without what
// has nothing to do with them. `{rank}` stands for the number of the rank.
#pragma once

#include <string>
#include <vector>

namespace weir::comm {

// Open MPI 4.1.4 of Debian 12: mpirun.openmpi -n 2
inline const std::vector<std::string> kOpenMpi414 = {
    "OMPI_APP_CTX_NUM_PROCS=2",
    "OMPI_COMMAND=env",
    "OMPI_COMM_WORLD_LOCAL_RANK={rank}",
    "OMPI_COMM_WORLD_LOCAL_SIZE=2",
    "OMPI_COMM_WORLD_NODE_RANK={rank}",
    "OMPI_COMM_WORLD_RANK={rank}",
    "OMPI_COMM_WORLD_SIZE=2",
    "OMPI_FILE_LOCATION=/tmp/ompi.node1.0/pid.11019/0/0",
    "OMPI_FIRST_RANKS=0",
    "OMPI_MCA_ess=^singleton",
    "OMPI_MCA_ess_base_jobid=1207238657",
    "OMPI_MCA_ess_base_vpid={rank}",
    "OMPI_MCA_mpi_oversubscribe=0",
    "OMPI_MCA_orte_app_num=0",
    "OMPI_MCA_orte_bound_at_launch=1",
    "OMPI_MCA_orte_ess_node_rank={rank}",
    "OMPI_MCA_orte_ess_num_procs=2",
    "OMPI_MCA_orte_hnp_uri=1207238656.0;tcp://192.0.2.2:54165",
    "OMPI_MCA_orte_launch=1",
    "OMPI_MCA_orte_local_daemon_uri=1207238656.0;tcp://192.0.2.2:54165",
    "OMPI_MCA_orte_num_nodes=1",
    "OMPI_MCA_orte_precondition_transports=c931530ae08bd8b8-d58726c3f89edb65",
    "OMPI_MCA_rmaps_base_oversubscribe=1",
    "OMPI_NUM_APP_CTX=1",
    "OMPI_UNIVERSE_SIZE=2",
    "PMIX_HOSTNAME=node1",
    "PMIX_ID=1207238657.{rank}",
    "PMIX_NAMESPACE=1207238657",
    "PMIX_RANK={rank}",
    "PMIX_SECURITY_MODE=native",
    "PMIX_SERVER_URI41=1207238656.0;tcp4://127.0.0.1:60179",
    "PMIX_VERSION=4.2.2rc2",
};

// MPICH 4.0.2 of Debian 12: mpirun.mpich -n 2. Nothing in it names the job.
inline const std::vector<std::string> kMpich402 = {
    "HYDI_CONTROL_FD=7", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME=node1",
    "MPI_LOCALNRANKS=2", "MPI_LOCALRANKID={rank}",
    "PMI_FD=6",          "PMI_RANK={rank}",
    "PMI_SIZE=2",
};

// Written from srun(1): srun -N 2 -n 5, rank 4 on the second machine.
inline const std::vector<std::string> kSlurmRank4 = {
    "SLURM_JOB_ID=8123",
    "SLURM_JOBID=8123",
    "SLURM_STEP_ID=2",
    "SLURM_STEPID=2",
    "SLURM_PROCID=4",
    "SLURM_LOCALID=1",
    "SLURM_NODEID=1",
    "SLURM_NTASKS=16",
    "SLURM_NPROCS=16",
    "SLURM_STEP_NUM_TASKS=5",
    "SLURM_STEP_NUM_NODES=2",
    "SLURM_STEP_TASKS_PER_NODE=3,2",
    "SLURM_TASKS_PER_NODE=8(x2)",
};

// Written from the documentation of torchrun: --standalone --nproc-per-node 4
inline const std::vector<std::string> kTorchrun = {
    "RANK={rank}",
    "LOCAL_RANK={rank}",
    "GROUP_RANK=0",
    "ROLE_RANK={rank}",
    "WORLD_SIZE=4",
    "LOCAL_WORLD_SIZE=4",
    "GROUP_WORLD_SIZE=1",
    "ROLE_WORLD_SIZE=4",
    "MASTER_ADDR=localhost",
    "MASTER_PORT=41337",
    "TORCHELASTIC_RESTART_COUNT=0",
    "TORCHELASTIC_MAX_RESTARTS=3",
    "TORCHELASTIC_RUN_ID=6dcfc2d3-5b0e-4c35-9a5c-1d5f4b9fd64e",
};

}  // namespace weir::comm
