/* The hardware of a rotary pendulum: what firmware.c needs of it. simulated.c is one. */
#ifndef ROBOT_H
#define ROBOT_H

/* Angles from upright in rad, speeds in rad/s. */
struct joints {
    float arm, rod, arm_speed, rod_speed;
};

/* Waits for the next tick, 20 ms after the last; 0 when the robot is switched off. */
int robot_wait(void);

struct joints robot_read(void);

/* Voltage of the motor, until the next call. */
void robot_drive(float volts);

#endif
