/*
 * A robot in simulation: the equations of rotary.py, for ten seconds. Each tick prints a line with
 * seconds, angles of arm and rod (rad), and the voltage of the motor until then.
 */
#include <math.h>
#include <stdio.h>

#include "robot.h"

#define TICKS 500
#define STEPS 10        /* of integration in a tick */
#define STEP 0.002      /* s */

static const double ARM = 0.095, ARM_LENGTH = 0.085, ARM_FRICTION = 0.0015;
static const double ROD = 0.024, ROD_LENGTH = 0.129, ROD_FRICTION = 0.0005;
static const double RESISTANCE = 8.4, TORQUE = 0.042;

static double arm = 0.05, rod = -0.08, arm_speed, rod_speed, voltage;
static int tick;

static void move(void)
{
    const double a = ARM * ARM_LENGTH * ARM_LENGTH / 3.0 + ROD * ARM_LENGTH * ARM_LENGTH;
    const double b = ROD * ROD_LENGTH * ROD_LENGTH / 4.0;
    const double c = ROD * ROD_LENGTH * ARM_LENGTH / 2.0;
    const double d = ROD * ROD_LENGTH * ROD_LENGTH / 3.0;
    const double g = ROD * ROD_LENGTH * 9.81 / 2.0;
    const double sine = sin(rod), cosine = cos(rod);
    const double current = (voltage - TORQUE * arm_speed) / RESISTANCE;
    const double on_arm = TORQUE * current - ARM_FRICTION * arm_speed
                        + c * sine * rod_speed * rod_speed
                        - 2.0 * b * sine * cosine * arm_speed * rod_speed;
    const double on_rod = g * sine - ROD_FRICTION * rod_speed
                        + b * sine * cosine * arm_speed * arm_speed;
    const double inertia = a + b * sine * sine, coupling = c * cosine;
    const double determinant = inertia * d - coupling * coupling;

    arm_speed += STEP * (d * on_arm - coupling * on_rod) / determinant;
    rod_speed += STEP * (inertia * on_rod - coupling * on_arm) / determinant;
    arm += STEP * arm_speed;
    rod += STEP * rod_speed;
}

int robot_wait(void)
{
    if (tick > 0)
        for (int step = 0; step < STEPS; step++)
            move();
    printf("%.2f %.6f %.6f %.4f\n", tick * STEPS * STEP, arm, rod, voltage);
    return tick++ < TICKS;
}

struct joints robot_read(void)
{
    const struct joints now = {(float)arm, (float)rod, (float)arm_speed, (float)rod_speed};

    return now;
}

void robot_drive(float volts)
{
    voltage = volts;
}
